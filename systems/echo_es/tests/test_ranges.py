"""The free ranges of an epoch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from echo_es.search.ranges import Ranges


def test_the_range_that_came_last_is_given_first() -> None:
    free = Ranges(slice(0, 10))
    first = free.take(4)
    assert first == [slice(0, 4)]
    assert free.take(3) == [slice(4, 7)]
    free.give_back(first)
    assert free.take(6) == [slice(0, 4), slice(7, 9)]
    assert free.take(5) == [slice(9, 10)]
    assert not free and free.take(1) == []


def test_the_number_of_slices_can_be_limited() -> None:
    free = Ranges(slice(0, 2), slice(5, 7), slice(8, 9))
    assert free.take(9, most=2) == [slice(0, 2), slice(5, 7)]
    assert len(free) == 1


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.booleans()), max_size=40))
def test_every_individual_is_free_or_taken_once(steps: list[tuple[int, int, bool]]) -> None:
    free, taken = Ranges(slice(0, 23)), []
    for wanted, most, back in steps:
        if back and taken:
            free.give_back(taken.pop(wanted % len(taken)))
        else:
            got = free.take(wanted, most)
            assert sum(part.stop - part.start for part in got) <= wanted and (not most or len(got) <= most)
            taken.append(got)
        out = [i for parts in taken for part in parts for i in range(part.start, part.stop)]
        assert len(out) == len(set(out)) and len(out) + len(free) == 23

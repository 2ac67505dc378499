"""Samples gathered one by one come out as the payload of a frame, in pieces or in one."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from echo_core import Spec
from echo_core.frames import Gatherer

EXAMPLES: dict[str, Any] = {
    "one leaf": np.zeros(3, np.float32),
    "of one byte": {"a": np.zeros((), np.uint8), "b": np.zeros((), np.bool_)},
    "two leaves": {"obs": np.zeros(4, np.float32), "reward": np.zeros((), np.float64)},
    "an empty leaf": {"a": np.zeros(2, np.int16), "nothing": np.zeros((0, 3), np.float32), "z": np.zeros((), np.int64)},
    "many leaves": [np.zeros(i % 5, np.int32) for i in range(100)],
}


def samples(example: Any, count: int) -> tuple[list[Any], bytes]:
    """Different samples, and the payload that holds them."""
    import optree

    leaves, structure = optree.tree_flatten(example)
    rng = np.random.default_rng(7)
    columns = [rng.integers(0, 2, (count, *leaf.shape)).astype(leaf.dtype) for leaf in leaves]
    return [structure.unflatten([column[i] for column in columns]) for i in range(count)], b"".join(c.tobytes() for c in columns)


@pytest.mark.parametrize("count", [1, 2, 63])
@pytest.mark.parametrize("name", EXAMPLES)
def test_columns_and_payload(name: str, count: int) -> None:
    spec = Spec.from_example(EXAMPLES[name])
    gatherer = Gatherer(spec.flattener, 1 << 20, 64)
    gatherer.limit = count
    given, expected = samples(EXAMPLES[name], count)
    assert [gatherer.take(sample) for sample in given] == [1] * count
    assert gatherer.take(given[0]) == 0  # the limit
    chunk = gatherer.collect()
    assert chunk is not None and chunk.count == count and gatherer.collect() is None
    assert b"".join(chunk.columns()) == chunk.payload() == expected
    assert all(column.readonly and len(column) for column in chunk.columns())


@pytest.mark.parametrize("count", [1, 5, 6])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_full_chunk_is_framed_as_it_lies(name: str, count: int) -> None:
    """Six samples are a full chunk. What is in front may be written again, and is the same memory."""
    spec = Spec.from_example(EXAMPLES[name])
    gatherer = Gatherer(spec.flattener, 1 << 20, 6, 11)
    gatherer.limit = count
    given, expected = samples(EXAMPLES[name], count)
    for sample in given:
        gatherer.take(sample)
    chunk = gatherer.collect()
    assert chunk is not None
    assert b"".join(chunk.columns()) == chunk.payload() == expected
    framed = chunk.framed(b"elevenbytes")
    if count < 6:
        assert framed is None
    else:
        assert framed == b"elevenbytes" + expected and chunk.framed(b"elevenbytes") is framed
        assert chunk.framed(b"ten bytes.") is None
        del chunk, gatherer
        assert framed == b"elevenbytes" + expected


def test_without_a_head_nothing_is_framed() -> None:
    gatherer = Gatherer(Spec.from_example(np.zeros(3)).flattener, 1 << 20, 1)
    gatherer.limit = 1
    gatherer.take(np.zeros(3))
    chunk = gatherer.collect()
    assert chunk is not None and chunk.framed(b"") is None


@pytest.mark.parametrize("nbytes", [16, 32, 64, 128, 256, 512])
def test_leaves_with_nothing_between_them_begin_apart(nbytes: int) -> None:
    """At the same offset modulo 4 KiB they would throw each other out of the cache. It costs some samples of room, not many."""
    example = [np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)]
    free = min(65536, (4 << 20) // (2 * nbytes))
    room = Gatherer(Spec.from_example(example).flattener, 4 << 20, 65536, 32).room
    assert free - 256 < room <= free
    assert 256 <= room * nbytes % 4096 <= 4096 - 256


def test_a_column_keeps_its_memory() -> None:
    """A chunk's memory is used again once nobody can see it; while somebody holds a column, somebody can."""
    example = {"x": np.zeros(1000, np.float64)}
    gatherer = Gatherer(Spec.from_example(example).flattener, 16_000, 2)
    gatherer.limit = 100
    held = []
    for number in range(20):
        gatherer.take({"x": np.full(1000, number, np.float64)})
        chunk = gatherer.collect()
        assert chunk is not None
        held += chunk.columns()
        del chunk
    gc.collect()
    assert [np.frombuffer(column)[[0, -1]].tolist() for column in held] == [[n, n] for n in range(20)]

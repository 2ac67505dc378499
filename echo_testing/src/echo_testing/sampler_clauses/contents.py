"""Clauses about contents: every inserted key is drawn once, deleted or evicted keys never, and updates have an effect."""

from __future__ import annotations

import numpy as np
import pytest

from echo_core.base.errors import DuplicateKeyError

from .keys import keys


class ContentsClauses:
    def test_everything_comes_out_exactly_once(self) -> None:
        """Drawing and deleting empties a sampler, regardless of which keys it draws."""
        sampler, rng, out = self.sampler(), np.random.default_rng(1), []
        for start in range(0, 300, 30):
            sampler.insert(np.arange(start, start + 30, dtype=np.uint64))
            drawn = np.unique(sampler.sample(10, rng)[0])
            sampler.delete(drawn)
            out += drawn.tolist()
        while len(sampler):
            drawn = np.unique(sampler.sample(min(7, len(sampler)), rng)[0])
            sampler.delete(drawn)
            out += drawn.tolist()
        assert sorted(out) == list(range(300))

    def test_deleted_keys_are_never_drawn(self) -> None:
        sampler = self.filled(*range(40))
        sampler.delete(keys(*range(0, 40, 2)))
        assert len(sampler) == 20
        for seed in range(30):
            assert all(key % 2 for key in self.drawn(sampler, 20, seed))

    def test_keys_may_come_in_any_order_and_size(self) -> None:
        top = self.top
        given = [top, 0, top // 2, 17, top // 3, top - 1]
        sampler = self.filled(*given)
        assert len(sampler) == len(given)
        assert sorted(self.held(sampler, given)) == sorted(given)
        sampler.delete(keys(top // 2, 0))
        assert set(self.drawn(sampler, 4)) <= {top, 17, top // 3, top - 1}

    def test_empty_calls_do_nothing(self) -> None:
        sampler = self.filled(4)
        sampler.insert(keys())
        sampler.insert(keys(), np.empty(0))
        sampler.delete(keys())
        sampler.update(keys(), np.empty(0))
        assert self.held(sampler, range(9)) == [4]

    def test_arguments_are_not_kept(self) -> None:
        sampler = self.sampler()
        mine, priorities = keys(1, 2, 3), np.ones(3)
        sampler.insert(mine, priorities)
        mine[...] = 50
        priorities[...] = np.nan
        assert set(self.drawn(sampler, 3)) <= {1, 2, 3}
        assert np.isfinite(sampler.sample(3, np.random.default_rng(0))[1]).all()

    def test_many_keys(self) -> None:
        sampler, rng = self.sampler(), np.random.default_rng(2)
        for start in range(0, 900, 300):
            sampler.insert(np.arange(start, start + 300, dtype=np.uint64))
        for _ in range(50):
            assert (sampler.sample(32, rng)[0] < 900).all()
        sampler.delete(np.arange(0, 900, 3, dtype=np.uint64))
        assert len(sampler) == 600

    def test_a_full_table_and_its_rows_once_more(self) -> None:
        sampler, rng = self.sampler(), np.random.default_rng(4)
        rows = sampler.capacity
        if rows is None:
            pytest.skip("a stream has no capacity")
        sampler.insert(np.arange(rows, dtype=np.uint64))
        assert len(sampler) == rows
        for turn in range(20):
            drawn = np.unique(sampler.sample(50, rng)[0])
            assert drawn.max() < rows
            sampler.delete(drawn)
            assert len(sampler) == rows - len(drawn)
            sampler.insert(drawn[::-1].copy(), None if turn % 2 else rng.random(len(drawn)))
            assert len(sampler) == rows
        with pytest.raises(DuplicateKeyError):
            sampler.insert(keys(rows - 1))

    def test_victims_are_held_and_named_in_one_order(self) -> None:
        sampler = self.played()
        if not sampler.evicts:
            with pytest.raises(NotImplementedError, match="remover"):
                sampler.victims(1)
            return
        every = sampler.victims(len(sampler))
        assert every.dtype == np.uint64
        assert sorted(every.tolist()) == self.held_keys(sampler)
        for n in range(1, len(sampler)):
            assert sampler.victims(n).tolist() == every[:n].tolist()
        for n in (0, len(sampler) + 1):
            with pytest.raises(ValueError, match=f"{n}.*{len(sampler)}"):
                sampler.victims(n)

    def test_the_last_of_several_updates_counts(self) -> None:
        once, twice = self.filled(*range(10)), self.filled(*range(10))
        once.update(keys(3, 4), np.array([0.25, 6.0]))
        twice.update(keys(3, 4, 3), np.array([8.0, 6.0, 0.25]))
        for seed in range(10):
            assert self.drawn(once, 5, seed) == self.drawn(twice, 5, seed)

    def test_updates_keep_the_order_of_arrival(self) -> None:
        """A sampler with a fixed order uses the new priorities; among equal ones, the order of arrival still holds."""
        order, updated = [7, 3, 12, 5, 8], [0.0, 1.0, 1.0, 9.0, 1.0]
        wanted = self.expected(order, updated)
        if wanted is None:
            pytest.skip("draws at random")
        sampler = self.filled(*order, priorities=[1.0] * 5)
        sampler.update(keys(5, 7), np.array([9.0, 0.0]))
        assert self.drawn(sampler, 5) == wanted

"""The contract of `echo_core.sampler`, one test per clause; see `echo_core.testing`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from .. import plugins
from ..errors import ConfigError, DuplicateKeyError, EchoError, UnknownKeyError
from ..sampler import Keys, Sampler
from .native_door import NativeDoor

__all__ = ["SamplerContract"]

CAPACITY = 1000  # of a replay sampler here, at least; its keys are below


def keys(*values: int) -> Keys:
    return np.array(values, np.uint64)


class SamplerContract(ABC):
    """What a sampler's test class inherits; `sampler` is all it must give.

    A sampler that draws at random is also measured against `probabilities`, one that does not
    against `expected`; override the one that applies.
    """

    DRAWS = 20_000  # for measuring a distribution

    @property
    def top(self) -> int:
        """The largest key there can be: of a stream any number, of a replay table a row."""
        return 2**64 - 1 if self.sampler().storage == "stream" else CAPACITY - 1

    @abstractmethod
    def sampler(self, **options: Any) -> Sampler:
        """A new, empty sampler. Options that it needs (a replay sampler's `capacity`: at least
        CAPACITY) it gets here; `options` go on top."""

    def expected(self, order: Sequence[int], priorities: Sequence[float]) -> list[int] | None:
        """The keys that sampling all must give, in order, when `order` were inserted in this
        order with these `priorities`; None for a sampler that draws at random.

        By default: a stream gives its keys in order of arrival.
        """
        return list(order) if self.sampler().storage == "stream" else None

    def probabilities(self, priorities: Sequence[float]) -> Sequence[float] | None:
        """How likely each of several keys is to be the first one drawn, given their priorities;
        None to measure only what the sampler says of itself."""
        return None

    # ---- helpers --------------------------------------------------------------------------

    def filled(self, *order: int, priorities: Sequence[float] | None = None) -> Sampler:
        sampler = self.sampler()
        given = None if priorities is None else np.array(priorities, np.float64)
        sampler.insert(keys(*order), given)
        return sampler

    def drawn(self, sampler: Sampler, n: int, seed: int = 0) -> list[int]:
        return sampler.sample(n, np.random.default_rng(seed))[0].tolist()

    def held(self, sampler: Sampler, among: Sequence[int]) -> list[int]:
        """Which of these keys it holds: those it can be told to update."""
        found = []
        for key in among:
            try:
                sampler.update(keys(key), np.ones(1))
            except UnknownKeyError:
                continue
            found.append(key)
        assert len(found) == len(sampler)
        return found

    def held_keys(self, sampler: Sampler) -> list[int]:
        """All that it holds, without touching it."""
        twin = self.sampler()
        twin.restore(sampler.state())
        held: list[int] = []
        while len(twin):
            drawn = np.unique(twin.sample(1 if twin.replacement else len(twin), np.random.default_rng(len(twin)))[0])
            twin.delete(drawn)
            held += drawn.tolist()
        return sorted(held)

    # ---- what it is -----------------------------------------------------------------------

    def test_it_is_found_by_its_name(self) -> None:
        sampler = self.sampler()
        assert isinstance(sampler, Sampler)
        names = [record.name for record in plugins.installed(plugins.SAMPLERS)]
        classes = []
        for name in names:
            try:
                classes.append(plugins.sampler_class(name))
            except EchoError:
                continue  # somebody else's, and broken
        assert type(sampler) in classes, (
            "install the plugin before its tests (pip install -e .): "
            f"none of {names} is {type(sampler).__name__}"
        )

    def test_it_says_what_it_is(self) -> None:
        sampler = self.sampler()
        assert sampler.storage in ("stream", "replay")
        assert isinstance(sampler.replacement, bool)
        if sampler.storage == "stream":
            assert sampler.capacity is None
            assert not sampler.replacement, "a stream gives every sample once"
        else:
            assert isinstance(sampler.capacity, int) and sampler.capacity >= CAPACITY

    def test_options_are_checked(self) -> None:
        with pytest.raises(ConfigError, match="no_such_option"):
            self.sampler(no_such_option=1)

    # ---- drawing --------------------------------------------------------------------------

    def test_a_draw_is_keys_and_probabilities(self) -> None:
        sampler = self.filled(5, 3, 9, 0, self.top)
        rng = np.random.default_rng(0)
        drawn, probabilities = sampler.sample(3, rng)
        assert (drawn.dtype, drawn.shape) == (np.uint64, (3,))
        assert (probabilities.dtype, probabilities.shape) == (np.float64, (3,))
        assert set(drawn.tolist()) <= {5, 3, 9, 0, self.top}
        assert ((probabilities > 0) & (probabilities <= 1)).all()
        drawn[...] = 77
        probabilities[...] = 77
        assert set(sampler.sample(3, rng)[0].tolist()) <= {5, 3, 9, 0, self.top}

    def test_a_draw_changes_no_contents(self) -> None:
        sampler = self.filled(1, 2, 3, 4)
        rng = np.random.default_rng(0)
        for _ in range(20):
            sampler.sample(2, rng)
        assert len(sampler) == 4
        assert self.held(sampler, range(6)) == [1, 2, 3, 4]

    def test_equal_samplers_and_seeds_draw_equal_keys(self) -> None:
        def play(seed: int) -> list[int]:
            sampler = self.filled(*range(100), priorities=[1.0 + key % 7 for key in range(100)])
            rng, out = np.random.default_rng(seed), []
            for turn in range(20):
                out += sampler.sample(5, rng)[0].tolist()
                sampler.update(keys(turn, turn + 50), np.array([3.0, 0.5]))
                sampler.delete(keys(turn + 20))
                sampler.insert(keys(900 + turn))
            return out

        assert play(1) == play(1)
        if self.expected(range(3), [1.0] * 3) is None:
            assert play(1) != play(2), "nothing is drawn from the generator"

    def test_it_uses_no_other_randomness(self) -> None:
        np.random.seed(0)
        before = np.random.get_state()[1].tolist()
        sampler = self.filled(*range(50))
        self.drawn(sampler, 20)
        assert np.random.get_state()[1].tolist() == before

    @pytest.mark.parametrize("n", [0, -1])
    def test_less_than_one_is_refused(self, n: int) -> None:
        with pytest.raises(ValueError, match=str(n)):
            self.filled(1, 2).sample(n, np.random.default_rng(0))

    def test_nothing_cannot_be_drawn_from(self) -> None:
        for sampler in (self.sampler(), self.filled()):
            with pytest.raises(ValueError, match=r"1.*0"):
                sampler.sample(1, np.random.default_rng(0))

    def test_more_than_there_is(self) -> None:
        sampler = self.filled(1, 2, 3)
        if sampler.replacement:
            assert set(self.drawn(sampler, 50)) <= {1, 2, 3}
        else:
            with pytest.raises(ValueError, match=r"4.*3"):
                sampler.sample(4, np.random.default_rng(0))
            assert sorted(self.drawn(sampler, 3)) == [1, 2, 3]

    def test_without_replacement_no_key_comes_twice(self) -> None:
        if self.sampler().replacement:
            pytest.skip("draws with replacement")
        sampler = self.filled(*range(60))
        for seed in range(20):
            drawn = self.drawn(sampler, 40, seed)
            assert len(set(drawn)) == 40

    def test_the_order_is_the_promised_one(self) -> None:
        order = [7, 3, self.top, 12, 0, 5]
        priorities = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0]
        wanted = self.expected(order, priorities)
        if wanted is None:
            pytest.skip("draws at random")
        sampler = self.filled(*order[:4], priorities=priorities[:4])
        sampler.insert(keys(*order[4:]), np.array(priorities[4:]))
        for n in range(1, len(order) + 1):
            got, probabilities = sampler.sample(n, np.random.default_rng(n))
            assert got.tolist() == wanted[:n]
            assert (probabilities == 1).all()

    def test_the_probabilities_are_true(self) -> None:
        """Of the first key drawn: what it says of itself, and what is promised, is what happens,
        within six standard deviations."""
        priorities = [1.0, 2.0, 0.5, 4.0, 1.0, 3.0]
        order = [10, 11, 12, 13, 14, 15]
        if self.expected(order, priorities) is not None:
            pytest.skip("does not draw at random")
        sampler = self.filled(*order, priorities=priorities)
        rng = np.random.default_rng(3)
        counts, said = dict.fromkeys(order, 0), dict.fromkeys(order, 0.0)
        for _ in range(self.DRAWS):
            (key,), (probability,) = sampler.sample(1, rng)
            counts[int(key)] += 1
            said[int(key)] = float(probability)
        promised = self.probabilities(priorities)
        for index, key in enumerate(order):
            for p in {said[key]} | ({float(promised[index])} if promised else set()):
                deviation = (self.DRAWS * max(p * (1 - p), 1e-4)) ** 0.5
                assert abs(counts[key] - p * self.DRAWS) <= 6 * deviation, (
                    f"key {key}: drawn {counts[key]} of {self.DRAWS} times, said p={p:.4f}"
                )

    def test_a_batch_is_drawn_like_single_keys(self) -> None:
        """How often each key is in batches agrees with the probabilities said of their draws."""
        order = list(range(8))
        priorities = [1.0 + key for key in order]
        if self.expected(order, priorities) is not None or not self.sampler().replacement:
            pytest.skip("its draws depend on each other")
        sampler, rng = self.filled(*order, priorities=priorities), np.random.default_rng(5)
        counts, turns, n = np.zeros(8), self.DRAWS // 16, 16
        said = np.zeros(8)
        for _ in range(turns):
            drawn, probabilities = sampler.sample(n, rng)
            np.add.at(counts, drawn.astype(np.int64), 1)
            said[drawn.astype(np.int64)] = probabilities
        deviation = np.sqrt(turns * n * np.maximum(said * (1 - said), 1e-4))
        assert (abs(counts - said * turns * n) <= 6 * deviation).all(), (counts, said * turns * n)

    def test_a_history_leaves_the_distribution_true(self) -> None:
        """After inserts, deletions and updates, keys come as often as it says (chi-square), the
        probabilities of all keys are those of one distribution, and weights of 1 / (N p) make the
        mean over batches that of the contents: no key is left out, none counts twice."""
        if self.expected(range(3), [1.0] * 3) is not None:
            pytest.skip("does not draw at random")
        sampler, rng = self.played(), np.random.default_rng(7)
        sampler.update(keys(*range(1, 40, 3)), 0.25 + rng.random(13))
        held, n = len(sampler), 10
        truth = {key: (key * 37 % 11) / 10 for key in self.held_keys(sampler)}
        counts, said, means = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0.0), []
        for _ in range(self.DRAWS // n):
            drawn, probabilities = sampler.sample(n, rng)
            for key, probability in zip(drawn.tolist(), probabilities.tolist(), strict=True):
                assert said[key] in (0.0, probability), f"key {key} has two probabilities"
                counts[key] += 1
                said[key] = probability
            means.append(np.mean([truth[key] for key in drawn.tolist()] / (held * probabilities)))
        draws = self.DRAWS // n * n
        unseen = sum(1 for probability in said.values() if probability == 0)
        total = sum(said.values())
        assert total <= 1 + 1e-9 and (unseen or total >= 1 - 1e-9), f"the probabilities sum to {total}"
        often = [key for key in truth if said[key] * draws >= 10]
        statistic = sum((counts[key] - said[key] * draws) ** 2 / (said[key] * draws) for key in often)
        assert statistic <= len(often) + 6 * (2 * len(often)) ** 0.5, f"chi-square {statistic:.0f} of {len(often)} keys"
        if unseen == 0:
            error, deviation = np.mean(means) - np.mean(list(truth.values())), np.std(means) / len(means) ** 0.5
            assert abs(error) <= 6 * deviation, f"the weighted mean is off by {error:.4f}, {error / deviation:.0f} deviations"

    # ---- inserting and deleting -----------------------------------------------------------

    def test_everything_comes_out_exactly_once(self) -> None:
        """Drawing and deleting empties a sampler, whatever it draws."""
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

    # ---- what is refused, with nothing changed --------------------------------------------

    @pytest.mark.parametrize(
        ("call", "error", "said"),
        [
            (lambda s: s.insert(keys(4, 2)), DuplicateKeyError, "key 2"),
            (lambda s: s.insert(keys(4, 5, 4)), DuplicateKeyError, "key 4"),
            (lambda s: s.insert(keys(4, 999)), DuplicateKeyError, "key 999"),
            (lambda s: s.delete(keys(1, 8)), UnknownKeyError, "key 8"),
            (lambda s: s.delete(keys(1, 1)), UnknownKeyError, "key 1"),
            (lambda s: s.update(keys(1, 8), np.ones(2)), UnknownKeyError, "key 8"),
            (lambda s: s.update(keys(1, 2), np.ones(1)), ValueError, "priorities"),
            (lambda s: s.update(keys(1, 2), np.array([1.0, np.nan])), ValueError, "key 2"),
            (lambda s: s.update(keys(1, 2), np.array([np.inf, 1])), ValueError, "key 1"),
            (lambda s: s.update(keys(1), np.array([-1.0])), ValueError, "key 1"),
            (lambda s: s.insert(keys(4, 5), np.array([1.0, -2])), ValueError, "key 5"),
            (lambda s: s.insert(keys(4, 5), np.ones(3)), ValueError, "priorities"),
        ],
    )
    def test_a_call_that_raises_has_changed_nothing(
        self, call: Any, error: type[Exception], said: str
    ) -> None:
        sampler, twin = self.filled(1, 2, 3, 999), self.filled(1, 2, 3, 999)
        with pytest.raises(error) as caught:
            call(sampler)
        assert said in str(caught.value)
        assert len(sampler) == 4
        for seed in range(5):
            rngs = np.random.default_rng(seed), np.random.default_rng(seed)
            mine, theirs = sampler.sample(3, rngs[0]), twin.sample(3, rngs[1])
            assert mine[0].tolist() == theirs[0].tolist()
            assert mine[1].tolist() == theirs[1].tolist()

    # ---- priorities -----------------------------------------------------------------------

    def test_the_last_of_several_updates_counts(self) -> None:
        once, twice = self.filled(*range(10)), self.filled(*range(10))
        once.update(keys(3, 4), np.array([0.25, 6.0]))
        twice.update(keys(3, 4, 3), np.array([8.0, 6.0, 0.25]))
        for seed in range(10):
            assert self.drawn(once, 5, seed) == self.drawn(twice, 5, seed)

    def test_updates_keep_the_order_of_arrival(self) -> None:
        """What is drawn in an order is drawn by the new priorities, and by arrival where it was."""
        order, updated = [7, 3, 12, 5, 8], [0.0, 1.0, 1.0, 9.0, 1.0]
        wanted = self.expected(order, updated)
        if wanted is None:
            pytest.skip("draws at random")
        sampler = self.filled(*order, priorities=[1.0] * 5)
        sampler.update(keys(5, 7), np.array([9.0, 0.0]))
        assert self.drawn(sampler, 5) == wanted

    # ---- the native door ------------------------------------------------------------------

    def test_both_doors_lead_to_the_same_contents(self) -> None:
        """A history played alternately through Python and through the capsule of `native()`
        gives what Python alone gives, and the capsule outlives the sampler."""
        sampler, twin = self.played(), self.played()
        capsule = sampler.native()
        if capsule is None:
            pytest.skip("has no native door")
        door = NativeDoor(capsule)
        for turn in range(40):
            either: Any = door if turn % 2 else sampler
            new = np.arange(200 + 3 * turn, 203 + 3 * turn, dtype=np.uint64)
            given = None if turn % 3 else np.array([0.5, 2.0, turn + 1.0])
            for one in (either, twin):
                one.insert(new, given)
                one.update(new[1:], np.array([3.0, 0.5 + turn]))
                if turn % 4 == 3:
                    one.delete(new[:1])
            mine = either.sample(7, np.random.default_rng(turn))
            theirs = twin.sample(7, np.random.default_rng(turn))
            assert mine[0].tolist() == theirs[0].tolist()
            assert mine[1].tolist() == theirs[1].tolist()
            assert len(door) == len(sampler) == len(twin)
        assert (door.victims is not None) == sampler.evicts
        if door.victims is not None:
            assert door.victims(9).tolist() == sampler.victims(9).tolist()
            assert len(door.victims(len(sampler) + 1)) == 0
        assert (door.priorities(new[1:]) >= 0).all()
        with pytest.raises(ValueError, match="not enough"):
            NativeDoor(self.sampler().native()).sample(1, np.random.default_rng(0))
        held = len(sampler)
        del sampler
        assert len(door) == held
        assert len(door.sample(5, np.random.default_rng(0))[0]) == 5

    # ---- checkpoints ----------------------------------------------------------------------

    def played(self) -> Sampler:
        """One with a history."""
        sampler = self.filled(*range(40), priorities=[1.0 + key % 5 for key in range(40)])
        sampler.delete(keys(*range(0, 40, 3)))
        sampler.insert(keys(100, self.top, 101))
        sampler.update(keys(1, 100), np.array([7.5, 0.5]))
        return sampler

    def test_a_restored_sampler_answers_as_the_original(self) -> None:
        original = self.played()
        state = original.state()
        again = self.sampler()
        again.insert(keys(500, 501))
        again.restore({name: array.copy() for name, array in state.items()})
        assert len(again) == len(original)
        for step in range(20):
            rngs = np.random.default_rng(step), np.random.default_rng(step)
            mine, theirs = original.sample(6, rngs[0]), again.sample(6, rngs[1])
            assert mine[0].tolist() == theirs[0].tolist()
            assert mine[1].tolist() == theirs[1].tolist()
            for sampler in (original, again):
                sampler.insert(keys(200 + step))
                sampler.update(keys(200 + step), np.array([2.0 + step]))
                if step % 3 == 0:
                    sampler.delete(keys(int(theirs[0][0])))

    def test_state_is_plain_and_a_copy(self) -> None:
        sampler = self.played()
        state = sampler.state()
        assert isinstance(state, dict) and all(isinstance(name, str) for name in state)
        for name, array in state.items():
            assert isinstance(array, np.ndarray), name
            assert array.dtype.kind in "biufc", f"{name} is {array.dtype}"
        copies = {name: array.copy() for name, array in state.items()}
        sampler.delete(keys(1, 100))
        sampler.insert(keys(300))
        for name, array in state.items():
            np.testing.assert_array_equal(array, copies[name])
        sampler.restore(state)
        for array in state.values():
            array[...] = 0
        assert len(sampler) == len(self.played())
        assert set(self.drawn(sampler, 10)) <= {*range(40), 100, 101, self.top}

    def test_an_empty_state_is_a_state(self) -> None:
        sampler = self.filled(1, 2)
        sampler.restore(self.sampler().state())
        assert len(sampler) == 0
        sampler.insert(keys(1, 2))
        assert len(sampler) == 2

    def test_a_state_that_is_none_is_refused_and_named(self) -> None:
        sampler = self.filled(1, 2, 3)
        state = sampler.state()
        for name in state:
            missing = {other: array for other, array in state.items() if other != name}
            with pytest.raises(ValueError, match=name):
                sampler.restore(missing)
        with pytest.raises(ValueError, match="superfluous"):
            sampler.restore({**state, "superfluous": np.zeros(3)})
        assert self.held(sampler, range(6)) == [1, 2, 3]

"""The sampler contract held by samplers of other kinds than those installed, and not by broken ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from echo_core.base.errors import DuplicateKeyError, UnknownKeyError
from echo_core.store.sampler import Keys, Priorities, Sampler, check_keys, check_priorities
from echo_testing import SamplerContract


class Proportional(Sampler):
    """Draws a key in proportion to its priority, in linear time: what is meant, not how it is done well."""

    storage = "replay"
    replacement = True

    @dataclass(frozen=True)
    class Options:
        capacity: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._held: dict[int, float] = {}

    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        new = check_keys(keys).tolist()
        values = [1.0] * len(new) if priorities is None else check_priorities(priorities, check_keys(keys)).tolist()
        for index, key in enumerate(new):
            if key in self._held or key in new[:index]:
                raise DuplicateKeyError(f"key {key} is held already or occurs twice")
        self._held.update(zip(new, values))

    def delete(self, keys: Keys) -> None:
        gone = self._check(keys)
        for index, key in enumerate(gone):
            if key in gone[:index]:
                raise UnknownKeyError(f"key {key} occurs twice")
        for key in gone:
            del self._held[key]

    def update(self, keys: Keys, priorities: Priorities) -> None:
        held = self._check(keys)
        self._held.update(zip(held, check_priorities(priorities, check_keys(keys)).tolist()))

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        if n < 1 or not self._held:
            raise ValueError(f"{n} keys were requested, but {len(self._held)} are held")
        held = np.fromiter(self._held, np.uint64, len(self._held))
        weights = np.fromiter(self._held.values(), float)
        weights = weights / weights.sum()
        index = rng.choice(len(held), n, p=weights)
        return held[index], weights[index]

    def __len__(self) -> int:
        return len(self._held)

    def state(self) -> dict[str, np.ndarray]:
        return {
            "keys": np.fromiter(self._held, np.uint64, len(self._held)),
            "priorities": np.fromiter(self._held.values(), float),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        if set(state) != {"keys", "priorities"}:
            raise ValueError(f"the state is keys and priorities, not {sorted(state)}")
        self._held = dict(zip(state["keys"].tolist(), state["priorities"].tolist()))

    def _check(self, keys: Keys) -> list[int]:
        held = check_keys(keys).tolist()
        for key in held:
            if key not in self._held:
                raise UnknownKeyError(f"key {key} is not held")
        return held


class Newest(Proportional):
    """The keys that came last, first."""

    replacement = False

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        if not 1 <= n <= len(self):
            raise ValueError(f"{n} keys were requested, but {len(self)} are held")
        return np.array(list(self._held)[::-1][:n], np.uint64), np.ones(n)


class Contract(SamplerContract):
    test_it_is_found_by_its_name = None  # it is nobody's plugin


class TestProportional(Contract):
    def sampler(self, **options: Any) -> Sampler:
        return Proportional(**{"capacity": 1000, **options})

    def probabilities(self, priorities: Sequence[float]) -> Sequence[float]:
        return [priority / sum(priorities) for priority in priorities]


class TestNewest(Contract):
    def sampler(self, **options: Any) -> Sampler:
        return Newest(**{"capacity": 1000, **options})

    def expected(self, order: Sequence[int], priorities: Sequence[float]) -> list[int]:
        return list(order)[::-1]


class Forgets(Proportional):
    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        super().restore(state)
        self._held = dict.fromkeys(self._held, 1.0)


class Lies(Proportional):
    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        drawn, _ = super().sample(n, rng)
        return drawn, np.full(n, 1 / len(self))


class Window(Proportional):
    """The newest hundred keys, uniformly, with the probabilities that all keys would have."""

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        super().sample(n, rng)
        newest = np.array(list(self._held)[-100:], np.uint64)
        return newest[rng.integers(len(newest), size=n)], np.full(n, 1 / len(self))


class OwnDice(Proportional):
    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        return super().sample(n, np.random.default_rng())


class HalfDone(Proportional):
    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        for index in range(len(keys)):
            super().insert(keys[index : index + 1], None if priorities is None else priorities[index : index + 1])


class Ghosts(Proportional):
    def delete(self, keys: Keys) -> None:
        self._check(keys)


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (Forgets, "test_a_restored_sampler_answers_as_the_original"),
        (Lies, "test_the_probabilities_are_true"),
        (Lies, "test_a_batch_is_drawn_like_single_keys"),
        (Lies, "test_a_history_leaves_the_distribution_true"),
        (Window, "test_a_full_sampler_tells_the_truth"),
        (OwnDice, "test_equal_samplers_and_seeds_draw_equal_keys"),
        (HalfDone, "test_a_call_that_raises_has_changed_nothing"),
        (Ghosts, "test_deleted_keys_are_never_drawn"),
    ],
)
def test_a_broken_sampler_is_caught(broken: type[Sampler], clause: str) -> None:
    class Broken(Contract):
        def sampler(self, **options: Any) -> Sampler:
            return broken(**{"capacity": 1000, **options})

    test: Callable[..., None] = getattr(Broken(), clause)
    arguments: tuple[Any, ...] = ()
    if clause == "test_a_call_that_raises_has_changed_nothing":
        arguments = (lambda s: s.insert(np.array([4, 2], np.uint64)), DuplicateKeyError, "key 2")
    with pytest.raises(AssertionError) as caught:
        test(*arguments)
    if broken is Window:
        assert "keys are not drawn with the probabilities that sample() reports: key " in str(caught.value), "the author of a sampler reads this first"

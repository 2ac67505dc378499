"""Tests each native sampler under random histories against the simplest Python model of its contents."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from echo_core.store.sampler import Sampler
from echo_samplers.fifo import Fifo
from echo_samplers.heaps import MaxHeap, MinHeap
from echo_samplers.hot_cold import HotCold
from echo_samplers.lifo import Lifo
from echo_samplers.prioritized import Prioritized
from echo_samplers.uniform import Uniform

ROWS = 40  # more than two nodes of a 16-ary tree

PRIORITY = st.one_of(st.just(0.0), st.sampled_from([0.5, 1.0, 1.0, 2.0]), st.floats(1e-6, 1e6))


def keys(values: Any) -> np.ndarray:
    return np.array(list(values), np.uint64)


class Machine(RuleBasedStateMachine):
    """`model` maps each row to its priority, in order of arrival."""

    def sampler(self) -> Sampler:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.subject = self.sampler()
        self.model: dict[int, float] = {}
        self.maximum = 1.0
        self.turn = 0

    @precondition(lambda self: len(self.model) < ROWS)
    @rule(data=st.data(), given=st.booleans())
    def insert(self, data: st.DataObject, given: bool) -> None:
        free = [row for row in range(ROWS) if row not in self.model]
        rows = data.draw(st.lists(st.sampled_from(free), unique=True))
        priorities = data.draw(st.lists(PRIORITY, min_size=len(rows), max_size=len(rows))) if given else [self.maximum] * len(rows)
        self.subject.insert(keys(rows), np.array(priorities) if given else None)
        self.model.update(zip(rows, priorities))
        self.maximum = max([self.maximum, *priorities])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        rows = data.draw(st.lists(st.sampled_from(list(self.model)), max_size=10))
        priorities = data.draw(st.lists(PRIORITY, min_size=len(rows), max_size=len(rows)))
        self.subject.update(keys(rows), np.array(priorities))
        self.model.update(zip(rows, priorities))
        self.maximum = max([self.maximum, *priorities])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        rows = data.draw(st.lists(st.sampled_from(list(self.model)), unique=True))
        self.subject.delete(keys(rows))
        for row in rows:
            del self.model[row]

    @rule()
    def checkpoint(self) -> None:
        state = self.subject.state()
        self.subject = self.sampler()
        self.subject.restore(state)

    def draw(self, n: int) -> tuple[list[int], np.ndarray]:
        self.turn += 1
        rows, probabilities = self.subject.sample(n, np.random.default_rng(self.turn))
        return rows.tolist(), probabilities

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        assert len(self.subject) == len(self.model)

    @invariant()
    def it_draws_what_the_model_says(self) -> None:
        if self.model:
            self.check()

    def check(self) -> None:
        raise NotImplementedError


class Ordered(Machine):
    def check(self) -> None:
        for n in {1, len(self.model) // 2 + 1, len(self.model)}:
            rows, probabilities = self.draw(n)
            assert rows == self.order()[:n]
            assert (probabilities == 1).all()

    def order(self) -> list[int]:
        raise NotImplementedError


class FifoMachine(Ordered):
    def sampler(self) -> Sampler:
        return Fifo(capacity=ROWS)

    def order(self) -> list[int]:
        return list(self.model)


class LifoMachine(Ordered):
    def sampler(self) -> Sampler:
        return Lifo(capacity=ROWS)

    def order(self) -> list[int]:
        return list(self.model)[::-1]


class MinHeapMachine(Ordered):
    def sampler(self) -> Sampler:
        return MinHeap(capacity=ROWS)

    def order(self) -> list[int]:
        return sorted(self.model, key=self.model.__getitem__)


class MaxHeapMachine(Ordered):
    def sampler(self) -> Sampler:
        return MaxHeap(capacity=ROWS)

    def order(self) -> list[int]:
        return sorted(self.model, key=lambda row: -self.model[row])


class UniformMachine(Machine):
    def sampler(self) -> Sampler:
        return Uniform(capacity=ROWS)

    def check(self) -> None:
        rows, probabilities = self.draw(20)
        assert set(rows) <= set(self.model)
        assert (probabilities == 1 / len(self.model)).all()


class DifferentMachine(Machine):
    def sampler(self) -> Sampler:
        return Uniform(capacity=ROWS, replacement=False)

    def check(self) -> None:
        rows, probabilities = self.draw(len(self.model))
        assert sorted(rows) == sorted(self.model)
        assert (probabilities == 1 / len(self.model)).all()


class PrioritizedMachine(Machine):
    options: dict[str, Any] = {"alpha": 0.6, "eps": 0.0}

    def sampler(self) -> Sampler:
        return Prioritized(capacity=ROWS, **self.options)

    def check(self) -> None:
        weights = {row: (p + self.options["eps"]) ** self.options["alpha"] if p else 0.0 for row, p in self.model.items()}
        total = sum(weights.values())
        if total == 0:
            return
        rows, probabilities = self.draw(20)
        np.testing.assert_allclose(probabilities, [weights[row] / total for row in rows], rtol=1e-6)
        if self.options.get("stratified"):
            assert rows == sorted(rows, key=rank_in_tree)

    @invariant()
    def priorities_come_back(self) -> None:
        if self.model:
            np.testing.assert_allclose(self.subject.priorities(keys(self.model)), list(self.model.values()), rtol=1e-5)


class StratifiedMachine(PrioritizedMachine):
    options = {"alpha": 1.0, "eps": 0.0, "stratified": True}


def rank_in_tree(row: int) -> list[int]:
    """The place of a row in the order of the tree's children, which is 0, 4, 8, 12, 1, 5, ... in every node."""
    digits = [row // 256 % 16, row // 16 % 16, row % 16]
    return [digit % 4 * 4 + digit // 4 for digit in digits]


class HotColdMachine(Machine):
    options: dict[str, Any] = {"weighting": "proportional", "alpha": 1.0, "eps": 0.5}

    def sampler(self) -> Sampler:
        return HotCold(capacity=ROWS, hot_capacity=8, hot_ratio=0.75, age_threshold=20, **self.options)

    def check(self) -> None:
        rows = list(self.model)
        hot = dict(zip(rows, self.subject.hot(keys(rows)).tolist()))
        assert sum(hot.values()) <= 8
        np.testing.assert_array_equal(self.subject.priorities(keys(rows)), list(self.model.values()))
        ranked = sorted(rows, key=lambda row: (hot[row], self.model[row]))  # the sort is stable, so the oldest of equal ones comes first
        assert self.subject.victims(len(rows)).tolist() == ranked
        drawn, probabilities = self.draw(20)
        both = len(set(hot.values())) == 2
        if both:
            assert sum(hot[row] for row in drawn) == 15
        if self.options["weighting"] == "proportional":
            sums = {side: sum(self.model[row] + 0.5 for row in rows if hot[row] == side) for side in (True, False)}
            shares = {True: 0.75, False: 0.25} if both else {True: 1.0, False: 1.0}
            expected = [shares[hot[row]] * (self.model[row] + 0.5) / sums[hot[row]] for row in drawn]
            np.testing.assert_allclose(probabilities, expected, rtol=1e-5)


class RankMachine(HotColdMachine):
    options = {"weighting": "rank"}


class SoftmaxMachine(HotColdMachine):
    options = {"weighting": "softmax", "temperature": 3.0}


class RobustMachine(HotColdMachine):
    options = {"weighting": "robust"}


for machine in (
    FifoMachine,
    LifoMachine,
    MinHeapMachine,
    MaxHeapMachine,
    UniformMachine,
    DifferentMachine,
    PrioritizedMachine,
    StratifiedMachine,
    HotColdMachine,
    RankMachine,
    SoftmaxMachine,
    RobustMachine,
):
    machine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)

TestFifo = FifoMachine.TestCase
TestLifo = LifoMachine.TestCase
TestMinHeap = MinHeapMachine.TestCase
TestMaxHeap = MaxHeapMachine.TestCase
TestUniform = UniformMachine.TestCase
TestDifferent = DifferentMachine.TestCase
TestPrioritized = PrioritizedMachine.TestCase
TestStratified = StratifiedMachine.TestCase
TestHotCold = HotColdMachine.TestCase
TestRank = RankMachine.TestCase
TestSoftmax = SoftmaxMachine.TestCase
TestRobust = RobustMachine.TestCase

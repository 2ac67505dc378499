"""Tests that the samplers of this distribution fulfil the contract of `echo_core.store.sampler`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from echo_core.store.sampler import Sampler
from echo_samplers.fifo import Fifo
from echo_samplers.heaps import MaxHeap, MinHeap
from echo_samplers.hot_cold import HotCold
from echo_samplers.lifo import Lifo
from echo_samplers.prioritized import Prioritized
from echo_samplers.uniform import Uniform
from echo_testing import SamplerContract


class TestFifo(SamplerContract):
    def sampler(self, **options: Any) -> Sampler:
        return Fifo(**options)


class TestFifoOfATable(SamplerContract):
    def sampler(self, **options: Any) -> Sampler:
        return Fifo(**{"capacity": 1000, **options})

    def expected(self, order: Sequence[int], priorities: Sequence[float]) -> list[int]:
        return list(order)


class TestLifo(SamplerContract):
    def sampler(self, **options: Any) -> Sampler:
        return Lifo(**{"capacity": 1000, **options})

    def expected(self, order: Sequence[int], priorities: Sequence[float]) -> list[int]:
        return list(order)[::-1]


class TestMinHeap(SamplerContract):
    sign = 1

    def sampler(self, **options: Any) -> Sampler:
        return MinHeap(**{"capacity": 1000, **options})

    def expected(self, order: Sequence[int], priorities: Sequence[float]) -> list[int]:
        ranked = sorted(range(len(order)), key=lambda i: self.sign * priorities[i])  # the sort is stable, so ties keep the order of arrival
        return [order[i] for i in ranked]


class TestMaxHeap(TestMinHeap):
    sign = -1

    def sampler(self, **options: Any) -> Sampler:
        return MaxHeap(**{"capacity": 1000, **options})


class TestUniform(SamplerContract):
    def sampler(self, **options: Any) -> Sampler:
        return Uniform(**{"capacity": 1000, **options})

    def probabilities(self, priorities: Sequence[float]) -> Sequence[float]:
        return [1 / len(priorities)] * len(priorities)


class TestUniformWithoutReplacement(TestUniform):
    def sampler(self, **options: Any) -> Sampler:
        return Uniform(**{"capacity": 1000, "replacement": False, **options})


class TestPrioritized(SamplerContract):
    fixed: dict[str, Any] = {"alpha": 0.7, "eps": 0.01}

    def sampler(self, **options: Any) -> Sampler:
        return Prioritized(**{"capacity": 1000, **self.fixed, **options})

    def probabilities(self, priorities: Sequence[float]) -> Sequence[float]:
        weights = (np.array(priorities) + self.fixed["eps"]) ** self.fixed["alpha"]
        return (weights / weights.sum()).tolist()


class TestStratified(TestPrioritized):
    fixed = {"alpha": 0.5, "eps": 0.0, "stratified": True}


class TestHotCold(SamplerContract):
    fixed: dict[str, Any] = {}

    def sampler(self, **options: Any) -> Sampler:
        return HotCold(**{"capacity": 1000, "hot_capacity": 12, "age_threshold": 30, **self.fixed, **options})


class TestHotColdOfTwo(TestHotCold):
    """The capacity is so small that the kit's six samples are in both strata."""

    fixed = {"hot_capacity": 2, "age_threshold": None, "alpha": 1.0, "eps": 0.0, "hot_ratio": 0.6}

    def probabilities(self, priorities: Sequence[float]) -> Sequence[float]:
        scores = np.array(priorities)
        hot = np.isin(np.arange(len(scores)), np.argsort(scores)[-2:])
        return np.where(hot, 0.6 * scores / scores[hot].sum(), 0.4 * scores / scores[~hot].sum()).tolist()


class TestHotColdBySoftmax(TestHotCold):
    fixed = {"weighting": "softmax", "temperature": 2.0}


class TestHotColdByRank(TestHotCold):
    fixed = {"weighting": "rank"}


class TestHotColdRobust(TestHotCold):
    fixed = {"weighting": "robust"}


@pytest.mark.parametrize("cls", [Fifo, Lifo, MinHeap, MaxHeap, Uniform, Prioritized, HotCold])
@pytest.mark.parametrize("capacity", [1, 2, 15, 16, 17, 255, 257, 4097])
def test_a_table_of_any_size_can_be_filled_and_emptied(cls: type[Sampler], capacity: int) -> None:
    sampler, rng = cls(capacity=capacity), np.random.default_rng(0)
    sampler.insert(np.arange(capacity, dtype=np.uint64), rng.random(capacity))
    assert len(sampler) == capacity
    seen = set(sampler.sample(capacity, rng)[0].tolist())
    assert max(seen) < capacity
    with pytest.raises(ValueError, match=f"key {capacity} is not a row"):
        sampler.insert(np.array([capacity], np.uint64))
    sampler.delete(np.arange(capacity, dtype=np.uint64))
    assert len(sampler) == 0
    with pytest.raises(ValueError, match="1 keys were requested, but 0 are held"):
        sampler.sample(1, rng)

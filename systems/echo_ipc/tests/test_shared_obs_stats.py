"""SharedObsNormStats: everybody sees what was put last, and merged statistics are those of all observations."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest

from echo_core.base.errors import ClosedError, SpecError
from echo_ipc import SharedObsNormStats


def test_put_get_and_what_is_new() -> None:
    stats = SharedObsNormStats(None)
    assert stats.get() is None and stats.get_new() is None
    for number in range(5):  # nobody gets them, and nothing waits
        stats.put((np.full(8, number, np.float32), np.ones(8)))
    copy = pickle.loads(pickle.dumps(stats))
    mean, std = stats.get_new()
    assert (mean == 4).all() and mean.dtype == np.float32 and std.dtype == np.float64
    assert stats.get_new() is None and stats.get() is stats.last_stats and stats.get()[0] is mean
    mean[:] = 9  # a copy
    assert (copy.get()[0] == 4).all()
    copy.close()
    stats.cleanup()


@pytest.mark.parametrize("value", [None, 3, 0.5, "text", (1, [2.5, None], {"a": (), "b": True}), float("inf")])
def test_other_values(value: Any) -> None:
    stats = SharedObsNormStats(None)
    stats.put(value)
    assert stats.get() == value and type(stats.get()) is type(value)
    stats.cleanup()


def test_arrays_of_every_kind() -> None:
    stats = SharedObsNormStats(None)
    values = {"bool": np.array([True]), "empty": np.zeros((0, 3)), "none": np.float32(2), "view": np.arange(12).reshape(3, 4).T, "text": np.array(["ab"])}
    stats.put(values)
    for name, value in values.items():
        found = stats.get()[name]
        assert found.dtype == value.dtype and found.shape == value.shape and (found == value).all()
    stats.cleanup()


def test_what_cannot_be_shared_is_refused_and_the_value_before_stays() -> None:
    stats = SharedObsNormStats(None, capacity=1000)
    stats.put(1)
    with pytest.raises(SpecError, match=r"stats\[1\] is of the type object"):
        stats.put((1, object()))
    with pytest.raises(ValueError, match="do not fit in 1,000; use capacity="):
        stats.put(np.zeros(1000))
    assert stats.get() == 1
    stats.put(2)
    assert stats.get() == 2
    stats.cleanup()
    with pytest.raises(ClosedError):
        stats.get()
    with pytest.raises(ClosedError):
        stats.put(1)


def of(batch: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    return len(batch), batch.mean(0), ((batch - batch.mean(0)) ** 2).sum(0)


def merge_all(stats: SharedObsNormStats, seed: int) -> None:
    for batch in np.array_split(observations(seed), 40):
        stats.merge(*of(batch))


def observations(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(seed * 10, 1 + seed, (1000, 6))


@pytest.mark.parametrize("how", ["spawn", "forkserver", "fork"])
def test_collectors_merge(how: str) -> None:
    stats = SharedObsNormStats(None)
    context: Any = multiprocessing.get_context(how)
    processes = [context.Process(target=merge_all, args=(stats, seed)) for seed in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    every = np.concatenate([observations(seed) for seed in range(3)])
    count, mean, m2 = stats.merge(0, np.zeros(6), np.zeros(6))
    assert count == 3000
    np.testing.assert_allclose(mean, every.mean(0))
    np.testing.assert_allclose(m2, ((every - every.mean(0)) ** 2).sum(0))
    np.testing.assert_allclose(stats.get()[0], every.mean(0))
    np.testing.assert_allclose(stats.get()[1], every.std(0))
    stats.cleanup()


def test_merging_what_does_not_fit() -> None:
    stats = SharedObsNormStats(None)
    assert stats.merge(0, np.zeros(2), np.zeros(2))[0] == 0
    with pytest.raises(SpecError, match=r"mean has the shape \[3\], but \[2\] was merged before"):
        stats.merge(1, np.zeros(3), np.zeros(3))
    with pytest.raises(SpecError, match="must not be negative"):
        stats.merge(-1, np.zeros(2), np.zeros(2))
    stats.cleanup()

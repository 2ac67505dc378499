"""Samples in which every part contains the number, so that a test can see which samples arrived and whether they are whole."""

from __future__ import annotations

from typing import Any

import numpy as np
from wire_learner import WireLearner

SMALL = {"obs": np.zeros(4, np.float32), "reward": np.zeros((), np.float64)}
LARGE = {"frame": np.zeros((100, 100, 4), np.uint8), "step": np.zeros((), np.int64)}
NARROW = {"a": np.zeros(3, np.int64), "b": np.zeros((), np.int64)}
WIDE = {"a": np.zeros(9000, np.int64), "b": np.zeros((), np.int64)}


def small(i: int) -> dict[str, np.ndarray]:
    return {"obs": np.full(4, i, np.float32), "reward": np.array(i, np.float64)}


def large(i: int) -> dict[str, np.ndarray]:
    return {"frame": np.full((100, 100, 4), i % 251, np.uint8), "step": np.array(i)}


def narrow(i: int, example: Any = NARROW) -> dict[str, np.ndarray]:
    """Sample `i` like `NARROW`, or like `WIDE`."""
    return {"a": np.full_like(example["a"], i), "b": np.array(i)}


def numbers(learner: WireLearner) -> list[int]:
    """The numbers that were given to the functions above, read from samples; checks that these are whole."""
    for first, second in learner.rows:
        assert np.all(first == (second if first.ndim == 1 else second % 251))
    return [int(row[-1]) for row in learner.rows]

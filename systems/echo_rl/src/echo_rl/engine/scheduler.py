"""The order in which waiting requests are admitted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from echo_rl.core.bandwidth import CalibratedCost
from echo_rl.engine.costs import UNMEASURED
from echo_rl.engine.request import Request
from echo_rl.engine.waiting import Waiting
from echo_rl.kernels import attention_bandwidth_cost_batch, schedule_priorities

POLICIES = ("fcfs", "lpm", "hrrn", "bandwidth", "value")

BOUND = 6.0
"""A request that waited this many running mean waits goes first. A constant time would thrash when the cache is small."""

Scores = NDArray[np.float64]


class Scheduler:
    """Choose a waiting request. ``policy`` is fcfs, lpm, hrrn, bandwidth or value; ``slots`` requests run at once.

    All waiting requests are scored at once, which takes about 10 ns for each of them, so that aging and cached prefixes count exactly.
    """

    def __init__(self, policy: str = "value", cost: CalibratedCost | None = None, slots: int = 1) -> None:
        scores: dict[str, Callable[[Waiting, Scores], Scores]] = {
            "fcfs": lambda waiting, wait: wait,
            "lpm": lambda waiting, wait: waiting.column("hit").copy(),
            "hrrn": self._hrrn,
            "bandwidth": self._bandwidth,
            "value": self._value,
        }
        if policy not in scores:
            raise ValueError(f"scheduler {policy!r} is unknown; use one of {', '.join(scores)}")
        self.policy, self.cost, self._scores = policy, cost or UNMEASURED, scores[policy]
        self.slots = slots
        self.mean_wait, self.admitted = 0.0, 0

    def choose(self, waiting: Waiting, now: float) -> Request:
        """Return the request to admit next. The caller admits it or nobody."""
        return waiting.requests[self.order(waiting, now, 1)[0]]

    def order(self, waiting: Waiting, now: float, count: int) -> list[int]:
        """Return the rows of the ``count`` requests to admit next, the first one first."""
        number = waiting.column("number")
        scores = self._scores(waiting, now - waiting.column("arrived"))
        oldest = np.flatnonzero(waiting.column("arrived") == waiting.column("arrived").min())
        oldest = oldest[number[oldest].argmin()]
        if self.admitted and self.mean_wait > 0 and now - waiting.column("arrived")[oldest] > BOUND * self.mean_wait:
            scores[oldest] = np.inf
        if count == 1:
            best = np.flatnonzero(scores == scores.max())
            return [int(best[number[best].argmin()])]
        return [int(row) for row in np.lexsort((number, -scores))[:count]]

    def record(self, wait: float) -> None:
        """Count the wait in seconds of an admitted request."""
        self.admitted += 1
        self.mean_wait += (wait - self.mean_wait) / min(self.admitted, 100)

    def _work(self, waiting: Waiting) -> Scores:
        # The slots share the constant cost of a step, so each new token pays for its part of it.
        prefill = self.cost.of(waiting.column("length"), waiting.column("hit"))
        return prefill + waiting.column("room") * (self.cost.c0 / self.slots + self.cost.c1)

    def _values(self, waiting: Waiting) -> Scores:
        # A score multiplies by the value, so values are shifted until the least is 1 if any is not positive: a worse one must never gain.
        values: Scores = waiting.column("value")
        least = values.min()
        return values + (1.0 - least if least <= 0 else 0.0)

    def _hrrn(self, waiting: Waiting, wait: Scores) -> Scores:
        return 1.0 + wait / self._work(waiting)

    def _bandwidth(self, waiting: Waiting, wait: Scores) -> Scores:
        whole, cached = (attention_bandwidth_cost_batch(waiting.column(name)) for name in ("length", "hit"))
        return schedule_priorities(self._values(waiting), whole - cached, np.maximum(wait, 0.0), epsilon=1e-6)

    def _value(self, waiting: Waiting, wait: Scores) -> Scores:
        patience = self.mean_wait or 1.0
        return self._values(waiting) * (1.0 + wait / patience) / self._work(waiting)

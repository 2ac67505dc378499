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

    All waiting requests are scored at once, which takes a few nanoseconds for each of them, so that aging and cached prefixes count exactly.
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
        number, arrived = waiting.column("number"), waiting.column("arrived")
        scores = self._scores(waiting, now - arrived)
        if self.admitted and 0 < BOUND * self.mean_wait < now - (first := arrived.min()):
            oldest = np.flatnonzero(arrived == first)
            scores[oldest[number[oldest].argmin()]] = np.inf
        if count == 1:
            best = np.flatnonzero(scores == scores.max())
            return [int(best[number[best].argmin()])]
        return [int(row) for row in np.lexsort((number, -scores))[:count]]

    def record(self, wait: float) -> None:
        """Count the wait in seconds of an admitted request."""
        self.admitted += 1
        self.mean_wait += (wait - self.mean_wait) / min(self.admitted, 100)

    def _work(self, waiting: Waiting) -> Scores:
        # It changes only with the cached tokens, so it is computed only for the few requests whose cached tokens have changed.
        work: Scores = waiting.column("work")
        rows = np.flatnonzero(np.isnan(work))
        if len(rows):
            length, hit, room = (waiting.column(name)[rows] for name in ("length", "hit", "room"))
            # The slots share the constant cost of a step, so each new token pays for its part of it.
            work[rows] = self.cost.of(length, hit) + room * (self.cost.c0 / self.slots + self.cost.c1)
        return work

    def _values(self, waiting: Waiting) -> Scores:
        # A score multiplies by the value, so values are shifted until the least is 1 if any is not positive: a worse one must never gain.
        values: Scores = waiting.column("value")
        least = values.min()
        return values if least > 0 else values + (1.0 - least)

    def _hrrn(self, waiting: Waiting, wait: Scores) -> Scores:
        return np.add(np.divide(wait, self._work(waiting), out=wait), 1.0, out=wait)

    def _bandwidth(self, waiting: Waiting, wait: Scores) -> Scores:
        whole, cached = (attention_bandwidth_cost_batch(waiting.column(name)) for name in ("length", "hit"))
        return schedule_priorities(self._values(waiting), whole - cached, np.maximum(wait, 0.0), epsilon=1e-6)

    def _value(self, waiting: Waiting, wait: Scores) -> Scores:
        # In the memory of ``wait``: with ten thousand requests, a new array for each step of the formula would take most of the time.
        wait /= self.mean_wait or 1.0
        wait += 1.0
        wait *= self._values(waiting)
        wait /= self._work(waiting)
        return wait

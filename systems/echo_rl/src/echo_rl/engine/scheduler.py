"""In which order waiting requests are admitted."""

from collections.abc import Callable, Sequence

from echo_rl.core.bandwidth import CalibratedCost
from echo_rl.engine.costs import UNMEASURED
from echo_rl.engine.request import Request

BOUND = 6.0
"""A request that waited this many running mean waits goes first. A constant time would thrash when the cache is small."""


class Scheduler:
    """Choose a waiting request. ``policy`` is fcfs, lpm, hrrn, bandwidth or value; ``slots`` requests run at once."""

    def __init__(self, policy: str = "value", cost: CalibratedCost | None = None, slots: int = 1) -> None:
        scores: dict[str, Callable[[Request, float, int], float]] = {
            "fcfs": lambda r, wait, hit: wait,
            "lpm": lambda r, wait, hit: hit,
            "hrrn": self._hrrn,
            "bandwidth": self._bandwidth,
            "value": self._value,
        }
        if policy not in scores:
            raise ValueError(f"scheduler {policy!r} is unknown; use one of {', '.join(scores)}")
        self.policy, self.cost, self._score = policy, cost or UNMEASURED, scores[policy]
        self.slots = slots
        self.mean_wait, self.admitted, self._shift = 0.0, 0, 0.0

    def choose(self, waiting: Sequence[Request], now: float, hits: Callable[[Request], int]) -> Request:
        """Return the request to admit next; ``hits`` tells how many of its tokens are cached. The caller admits it or nobody."""
        oldest = min(waiting, key=lambda r: (r.arrived, r.number))
        if self.admitted and self.mean_wait > 0 and now - oldest.arrived > BOUND * self.mean_wait:
            return oldest
        # A score multiplies by the value, so values are shifted until the least is 1 if any is not positive: a worse one must never gain.
        least = min(r.value for r in waiting)
        self._shift = 1.0 - least if least <= 0 else 0.0
        return max(waiting, key=lambda r: (self._score(r, now - r.arrived, hits(r)), -r.number))

    def record(self, wait: float) -> None:
        """Count the wait in seconds of an admitted request."""
        self.admitted += 1
        self.mean_wait += (wait - self.mean_wait) / min(self.admitted, 100)

    def _work(self, request: Request, hit: int) -> float:
        # The slots share the constant cost of a step, so each new token pays for its part of it.
        return self.cost(len(request.tokens), hit) + request.room * (self.cost.c0 / self.slots + self.cost.c1)

    def _hrrn(self, request: Request, wait: float, hit: int) -> float:
        return 1.0 + wait / self._work(request, hit)

    def _bandwidth(self, request: Request, wait: float, hit: int) -> float:
        t = len(request.tokens)
        effective = (t * (t + 1) - hit * (hit + 1)) / 2
        return (request.value + self._shift) / (effective + wait + 1e-6)

    def _value(self, request: Request, wait: float, hit: int) -> float:
        patience = self.mean_wait or 1.0
        return (request.value + self._shift) * (1.0 + wait / patience) / self._work(request, hit)

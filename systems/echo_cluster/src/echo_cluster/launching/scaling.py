"""How many workers there should be, by who waits for whom."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

__all__ = ["Scaling", "waits"]

LEARNER_WAITS = 0.10  # of the time: more workers
WORKERS_WAIT = 0.50  # of the workers: fewer
MORE, FEWER = 0.25, 0.10


def waits(shards: list[dict[str, Any]]) -> tuple[bool, float]:
    """Whether a learner waits for items, and which share of the workers waits for room, from what the shards say of themselves (`looks.look`)."""
    learner, blocked, connections = False, 0, 0
    for shard in shards:
        connections += shard["workers"]
        tables = shard["tables"].values()
        learner = learner or any(table["draws_waiting"] for table in tables)
        if any("inserts" in (table["blocked"] or "") or table["inserts_waiting"] for table in tables):
            blocked += shard["workers"]
    return learner, blocked / connections if connections else 0.0


class Scaling:
    """Looks at who waits, and says how many workers there should be.

    If a learner waits for more than 10 % of the time, and no worker is blocked, there should be a quarter more. If more than half of the workers are
    blocked on average, there should be a tenth fewer. Both need looks at a whole window, and each change begins a new one.

    Args:
        least, most: of the workers.
        window: seconds.
    """

    def __init__(self, least: int, most: int, window: float = 30.0) -> None:
        self._least, self._most, self._window = least, most, window
        self._looks: deque[tuple[float, bool, float]] = deque()
        self._began: float | None = None

    def look(self, now: float, learner_waits: bool, workers_blocked: float, workers: int) -> int:
        """Note one look, at the time `now` in seconds. Returns how many workers there should be; that is `workers` if nothing is to be changed."""
        if self._began is None:
            self._began = now
        self._looks.append((now, learner_waits, workers_blocked))
        while self._looks[0][0] < now - self._window:
            self._looks.popleft()
        if now - self._began < self._window:
            return workers
        n = len(self._looks)
        waited, blocked = sum(look[1] for look in self._looks) / n, sum(look[2] for look in self._looks) / n
        wanted = workers
        if waited > LEARNER_WAITS and not any(look[2] for look in self._looks):
            wanted = workers + max(1, math.ceil(workers * MORE))
        elif blocked > WORKERS_WAIT:
            wanted = workers - max(1, math.floor(workers * FEWER))
        wanted = max(self._least, min(self._most, wanted))
        if wanted != workers:
            self._looks.clear()
            self._began = None
        return wanted

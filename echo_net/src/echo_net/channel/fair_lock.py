"""A lock that is handed on in the order in which it was asked for."""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["FairLock"]


class FairLock:
    """Whose turn it is to put samples into the store.

    Only one thread at a time does so, because a batch leaves the store as soon as it is complete. If a
    thread could be held up between claiming a slot and committing it, other threads would fill the batches
    behind. Those batches would overtake it, and with them later samples of its own client. Threads get their
    turn in the order in which they asked: a plain lock goes back to the thread that has just released it,
    and the others starve.
    """

    SHARE = 4  # a turn at a full store may be so many times as long as the shortest of the last turns
    LONG = 1 << 30

    def __init__(self) -> None:
        self._shortest = self.LONG  # samples of the shortest of the last turns
        self._since = 0  # turns that were longer since then
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()  # each is released to hand the turn over

    def acquire(self, timeout: float) -> bool:
        """Wait for the turn for at most `timeout` seconds; False if it did not come."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return True
            if timeout <= 0:
                return False
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=timeout):
            return True
        with self._lock:
            if mine not in self._waiting:
                return True  # it came in the last moment
            self._waiting.remove(mine)
            return False

    def share(self) -> int:
        """After how many samples a turn should end when the store is full.

        While the frames of one client hold a single sample, its turns are that long, and without this bound the others would get hundreds of
        samples for each of its samples.
        """
        return self.SHARE * self._shortest if self._waiting else self.LONG

    def release(self, taken: int = LONG) -> None:
        """Hand the turn to the thread that has waited longest; `taken` samples were stored in it."""
        with self._lock:
            self._since += 1
            if taken <= self._shortest or self._since > 2 * len(self._waiting) + 2:  # by then, every client had a turn
                self._shortest, self._since = taken, 0
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False

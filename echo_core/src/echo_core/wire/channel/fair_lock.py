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

    def __init__(self) -> None:
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

    def release(self) -> None:
        """Hand the turn to whoever has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False

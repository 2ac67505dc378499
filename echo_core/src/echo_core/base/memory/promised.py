"""Memory that this process has promised to tables that grow, and that they do not use yet."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from .cgroup import available_memory

__all__ = ["Growing", "promise", "unpromised_memory"]


class Growing(Protocol):
    """What grows: hashable by identity, and weakly referenced."""

    def bytes_to_come(self) -> int:
        """Bytes that it may still take."""


_lock = threading.Lock()
_growing: weakref.WeakSet[Growing] = weakref.WeakSet()


def promise(growing: Growing) -> None:
    """From now on, until it is gone, count what `growing` may still take as used."""
    with _lock:
        _growing.add(growing)


def unpromised_memory() -> int:
    """Bytes that can be allocated, as `available_memory`, and that were not promised to what grows in this process."""
    with _lock:
        growing = list(_growing)
    return max(0, available_memory() - sum(one.bytes_to_come() for one in growing))


def _after_fork() -> None:
    """In the child: a thread that does not exist there may hold the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

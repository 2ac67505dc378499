"""Holds every lock that objects can take, so that a process forked meanwhile inherits them: `held_locks`."""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

__all__ = ["held_locks"]

LOCKS = (type(threading.Lock()), type(threading.RLock()))
CONTAINERS = (dict, list, tuple, set, frozenset, deque, partial, MethodType, threading.Condition, threading.Event)
PATIENCE = 0.2  # seconds for one lock: a lock that is held all that time is held by another thread, which serves the purpose


@contextmanager
def held_locks(*objects: Any) -> Iterator[int]:
    """Hold all locks of these objects, of what they refer to, and of Echo's modules, in a thread that a forked child does not have.

    Yields how many there are. Locks of native code are not among them.
    """
    locks = _locks(*objects)
    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        held = [lock for lock in locks if lock.acquire(timeout=PATIENCE)]
        taken.set()
        release.wait()
        for lock in reversed(held):
            lock.release()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    taken.wait()
    try:
        yield len(locks)
    finally:
        release.set()
        holder.join()


def _locks(*objects: Any) -> list[Any]:
    found: dict[int, Any] = {}
    seen: set[int] = set()
    todo = [*objects, *(vars(module) for name, module in list(sys.modules.items()) if name.split(".")[0].startswith("echo"))]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        if isinstance(one, LOCKS):
            found[id(one)] = one
        elif isinstance(one, CONTAINERS) or type(one).__module__.split(".")[0].startswith("echo"):
            todo += gc.get_referents(one)
    return list(found.values())

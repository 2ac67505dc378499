"""Large blocks of memory that are used again: fresh pages cost more than a copy into them, as the kernel clears each on first touch."""

from __future__ import annotations

import math
import mmap
import os
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

__all__ = ["LARGE", "empty", "large"]

LARGE = 256 << 10  # bytes; the allocator itself keeps smaller blocks
MOST_BYTES = 128 << 20  # of memory that is kept for later calls
MOST = 8

_lock = threading.Lock()
_spares: list[mmap.mmap] = []


def large(count: int) -> np.ndarray:
    """A writable uint8 array of `count` bytes that begins at a page; its contents are undefined. When the last array on its memory
    is gone, the memory is kept for the next array of that size."""
    size = -(-count // mmap.PAGESIZE) * mmap.PAGESIZE
    with _lock:
        memory = next((spare for spare in _spares if len(spare) == size), None)
        if memory is not None:
            _spares.remove(memory)
    if memory is None:
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    # All other arrays are views of this one. numpy makes it their base (and not its own base) because its base is not an array.
    whole = np.frombuffer(memory, np.uint8)
    weakref.finalize(whole, _give_back, memory).atexit = False
    return whole[:count]


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Like `numpy.empty`, but a large array lies in memory that is used again."""
    count = math.prod(shape) * np.dtype(dtype).itemsize
    if count < LARGE:
        return np.empty(shape, dtype)
    array: np.ndarray = large(count).view(dtype).reshape(shape)
    return array


def _give_back(memory: mmap.mmap) -> None:
    # This may run at any point, also while this thread holds the lock. In that case the memory is simply not kept.
    if not _lock.acquire(blocking=False):
        return
    try:
        _spares.append(memory)
        while len(_spares) > MOST or sum(map(len, _spares)) > MOST_BYTES:
            _spares.pop(0)
    finally:
        _lock.release()


def _after_fork() -> None:
    """In the child: a thread that does not exist there may hold the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

"""Memory for messages of megabytes: glibc keeps some of what is freed, and gives back the rest."""

from __future__ import annotations

import ctypes
import os
import threading

__all__ = ["LEARNER_BYTES", "give_back_freed_memory", "keep_freed_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
BLOCK_BYTES = 31 << 20  # just below the most that glibc allows for the threshold
WORKER_BYTES = 62 << 20  # an acknowledgement frees half of the window, 32 MiB, which the next samples need again
LEARNER_BYTES = 32 << 20  # with 16 MiB, streams of 28 KB messages from four workers were an eighth slower
WORTH_BYTES = 64 << 20  # so much is given back at a time ...
PAUSE = 5.0  # ... and not more often than in so many seconds

_libc = ctypes.CDLL(None)
_mallopt = getattr(_libc, "mallopt", lambda parameter, value: 0)  # only glibc has it, and the next
_trim = getattr(_libc, "malloc_trim", lambda pad: 0)


def keep_freed_memory(at_the_end: int = WORKER_BYTES) -> None:
    """Make glibc reuse freed blocks of megabytes, for the rest of this process.

    By default, glibc takes a block of more than 128 KiB from the kernel and gives it back when it is freed. A message passes through half a
    dozen such blocks, and a page fault for every 4 KiB of each took half of all the time of a stream. Therefore blocks up to `BLOCK_BYTES` come
    from the heaps, which keep what is freed. Other allocators, and thresholds that the environment sets, are not affected.

    Args:
        at_the_end: the free bytes that the end of a heap keeps. Each thread may have a heap of its own: with as many as a worker needs, a
            learner with sixteen heaps kept half a gigabyte after a crowd of clients had left.
    """
    chosen = os.environ.get("GLIBC_TUNABLES", "")
    for name, parameter, size in (("MMAP_THRESHOLD", M_MMAP_THRESHOLD, BLOCK_BYTES), ("TRIM_THRESHOLD", M_TRIM_THRESHOLD, at_the_end)):
        if f"MALLOC_{name}_" not in os.environ and f"malloc.{name.lower()}" not in chosen:
            _mallopt(parameter, size)


class _Freed:
    """Counts what was freed since memory was last given back, and does that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = 0
        self._waiting = False

    def add(self, n: int) -> None:
        with self._lock:
            self._bytes += n
            if self._waiting or self._bytes < WORTH_BYTES:
                return
            self._waiting = True
        timer = threading.Timer(PAUSE, self._give_back)
        timer.name, timer.daemon = "echo-freed", True
        try:
            timer.start()
        except RuntimeError:  # no more threads; the next client that leaves tries again
            self._waiting = False

    def _give_back(self) -> None:
        with self._lock:
            self._bytes, self._waiting = 0, False
        _trim(0)


_freed = _Freed()


def give_back_freed_memory(n: int) -> None:
    """Soon make glibc give free pages within its heaps back to the kernel: a client has left that had sent `n` bytes.

    What clients sent lay between blocks that stay, so that no heap ends there. A thread does this in `PAUSE` seconds, as soon as clients that had sent
    `WORTH_BYTES` have left. It is not done more often, because other streams use free pages again.
    """
    _freed.add(n)

"""Memory for messages of megabytes: the process keeps it and does not get it from the kernel for each message."""

from __future__ import annotations

__all__ = ["keep_freed_memory"]

BLOCK_BYTES = 31 << 20  # just below the most that glibc lets its threshold grow to


def keep_freed_memory() -> None:
    """Make glibc reuse freed blocks of megabytes, for the rest of this process.

    By default, glibc takes a block of more than 128 KiB from the kernel and gives it back when it is freed. A message passes through half a
    dozen such blocks, and a page fault for every 4 KiB of each took half of all the time of a stream. glibc adapts: after a block of some
    size was freed, it keeps smaller ones (mallopt(3), M_MMAP_THRESHOLD), up to twice this much. Nothing is written to the block that is
    freed here, so it costs no memory itself. Other allocators, and a threshold set by MALLOC_MMAP_THRESHOLD_, are not affected.
    """
    bytes(BLOCK_BYTES)

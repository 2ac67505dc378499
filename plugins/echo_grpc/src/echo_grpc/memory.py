"""Memory for messages of megabytes: kept by the process, not fetched from the kernel for each."""

from __future__ import annotations

__all__ = ["keep_freed_memory"]

BLOCK_BYTES = 31 << 20  # just below the most that glibc lets its threshold grow to


def keep_freed_memory() -> None:
    """Have glibc reuse freed blocks of megabytes, for the rest of this process.

    By default it takes a block of more than 128 KiB from the kernel and gives it back when it is freed, and a message passes through
    half a dozen of them: a page fault for every 4 KiB of each was half of all the time of a stream. glibc learns from what it sees:
    once a block so large was freed, it keeps smaller ones (mallopt(3), M_MMAP_THRESHOLD), up to twice this much. Nothing is written
    to the block, so it costs no memory itself. Other allocators, and a threshold set by MALLOC_MMAP_THRESHOLD_, stay as they are.
    """
    bytes(BLOCK_BYTES)

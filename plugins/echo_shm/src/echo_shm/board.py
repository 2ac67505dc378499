"""Where a learner leaves its weights for all workers of the machine to read: a few buffers in a memfd, written in turn.

Nobody waits for anybody. A version stays where it is until two more were published; a reader that was slower than that finds bytes whose
digest is not theirs, and begins again with the newest. Which that is stands on the first page, so that a reader that gets little of the
processor does not run after notices that are old when it reads them. Nothing there is trusted more than the bytes: the digest decides.
The memfd is sealed: those it is handed to can only read it (`Board.sealed`: Linux 5.1).

Weights are packed where they will be read, in memory that `Board.memory` gave for them: a copy from elsewhere would take as long again. That memory is
the learner's own reference to the version too (for those who get it over a socket), so it is written again only when nobody in the learner has it.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import weakref
from typing import NamedTuple

import numpy as np

from echo_core.errors import ProtocolError
from echo_core.weights import PackedWeights, receive

__all__ = ["Board", "Notice", "Reader"]

TRIES = 8  # of a reader, before it asks
SLOTS = 3  # the newest, the one being written, and one for who still reads
PAGE = 4096
META = 1 << 16  # bytes that are kept for the description of weights to come
F_SEAL_FUTURE_WRITE = 0x0010  # Linux 5.1; Python 3.11 has no name for it


def _up(count: int) -> int:
    return -(-count // PAGE) * PAGE


class Notice(NamedTuple):
    """Where a version lies."""

    version: int
    generation: int  # of the memfd
    offset: int
    payload: int  # bytes, which the description follows at the next page
    meta: int

    @property
    def end(self) -> int:
        return self.described + self.meta

    @property
    def described(self) -> int:
        return self.offset + _up(self.payload)


class Board:
    """The learner's end. One thread at a time may `put`; `newest` may be read by any.

    Raises OSError when the memory is not to be had.
    """

    def __init__(self) -> None:
        self.newest: Notice | None = None
        self.fd = -1
        self.sealed = True  # against writing by those it is handed to
        self._generation = 0
        self._slot = 0  # of the newest
        self._capacity = 0
        self._memory: np.ndarray | None = None
        self._mapped: mmap.mmap | None = None
        self._held: list[weakref.ref[np.ndarray] | None] = [None] * SLOTS  # what was packed into each

    def memory(self, count: int) -> np.ndarray | None:
        """`count` bytes that the next version may be packed into, contents undefined; None when that must be elsewhere, and copied."""
        slot = self._unused() if _up(count) + META <= self._capacity else None
        if slot is None:
            return None
        # A view of the mapping and not of an array, so that all that is made of it refers to this one, and it is seen to go.
        assert self._mapped is not None  # it has a capacity
        whole: np.ndarray = np.frombuffer(self._mapped, np.uint8, count, self._start(slot))
        self._held[slot] = weakref.ref(whole)
        return whole[:]

    def put(self, weights: PackedWeights) -> None:
        payload = weights.payload
        size = _up(payload.nbytes) + _up(len(weights.meta))
        slot = self._slot_of(payload)
        if slot is None or size > self._capacity:
            slot = self._unused()
            if slot is None or size > self._capacity:
                capacity = _up(payload.nbytes) + max(META, 2 * _up(len(weights.meta)))
                self._make(capacity + capacity // 8)
                slot = 0
            np.copyto(self._bytes(self._start(slot), payload.nbytes), payload)
        notice = Notice(weights.version, self._generation, self._start(slot), payload.nbytes, len(weights.meta))
        self._bytes(notice.described, notice.meta)[:] = np.frombuffer(weights.meta, np.uint8)
        self._slot = slot
        self.newest = notice  # first: a reader confirms what it finds on the page, and the learner must know of that
        self._bytes(0, 8 * len(notice)).view(np.int64)[:] = notice

    def _start(self, slot: int) -> int:
        return PAGE + slot * self._capacity

    def _bytes(self, start: int, count: int) -> np.ndarray:
        assert self._memory is not None
        return self._memory[start : start + count]

    def _unused(self) -> int | None:
        """The slot that was written longest ago, of those that nobody here refers to; None if there is none."""
        for slot in ((self._slot + 1 + i) % SLOTS for i in range(SLOTS - 1)):
            held = self._held[slot]
            if held is None or held() is None:
                return slot
        return None

    def _slot_of(self, payload: np.ndarray) -> int | None:
        """Which of the slots it lies in, as `memory` gave it."""
        if self._memory is None:
            return None
        at = payload.ctypes.data - self._memory.ctypes.data
        return next((slot for slot in range(SLOTS) if at == self._start(slot)), None)

    def _make(self, capacity: int) -> None:
        capacity = _up(capacity)
        fd = os.memfd_create("echo-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            size = PAGE + SLOTS * capacity
            os.ftruncate(fd, size)
            os.posix_fallocate(fd, 0, size)  # a full machine is an error here, not a SIGBUS in a reader
            mapped = mmap.mmap(fd, size)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            try:
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)
            except OSError:  # an older kernel
                self.sealed = False
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(fd)
            raise
        self.close()
        self.fd, self._mapped, self._memory, self._capacity = fd, mapped, np.frombuffer(mapped, np.uint8), capacity
        self._generation += 1
        self._slot, self._held = 0, [None] * SLOTS

    def close(self) -> None:
        self.newest, self._memory, self._mapped, self._capacity = None, None, None, 0
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Reader:
    """A worker's end, over the descriptor of one generation, which can be closed afterwards."""

    def __init__(self, fd: int) -> None:
        self._memory = np.frombuffer(mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ), np.uint8)

    def newest(self) -> Notice:
        """As the first page has it; perhaps half of one and half of another."""
        return Notice(*self._memory[: 8 * len(Notice._fields)].view(np.int64).tolist())

    def copy(self, notice: Notice) -> tuple[int, bytes, np.ndarray, int] | None:
        """Version, description, payload and its digest, which is proven on the way: of the version of `notice` or a newer one. None when
        versions come faster than they can be copied here.

        Raises ProtocolError when `notice` does not lie within the memory.
        """
        if not self._holds(notice):
            raise ProtocolError("the learner's notice of weights reaches past its memory")
        for _ in range(TRIES):
            newest = self.newest()
            if newest.version < notice.version or not self._holds(newest):
                newest = notice
            if (whole := self._whole(newest)) is not None:
                return newest.version, *whole
        return None

    def _holds(self, notice: Notice) -> bool:
        return min(notice) >= 0 and notice.end <= len(self._memory)

    def _whole(self, notice: Notice) -> tuple[bytes, np.ndarray, int] | None:
        meta = self._memory[notice.described : notice.end].tobytes()
        try:
            if json.loads(meta)["version"] != notice.version:
                return None
            return meta, *receive(meta, self._memory[notice.offset : notice.offset + notice.payload])
        except (ProtocolError, ValueError, KeyError, TypeError):
            return None

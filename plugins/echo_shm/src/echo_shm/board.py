"""Where a learner leaves its weights for all workers of the machine to read: a few places in a memfd, written in turn (board.hpp).

Nobody waits for anybody. A version stays where it is until two more were published; a reader that was slower than that sees that its place was
written to meanwhile, and begins again with the newest. Which that is stands on the first page, so that a reader that gets little of the
processor does not run after notices that are old when it reads them.
The memfd is sealed: those it is handed to can only read it (`Board.sealed`: Linux 5.1).

Weights are packed where they will be read, in memory that `Board.memory` gave for them: a copy from elsewhere would take as long again. That memory is
the learner's own reference to the version too (for those who get it over a socket), so it is written again only when nobody in the learner has it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from typing import NamedTuple

import numpy as np

from echo_core.wire.weights import PackedWeights, aligned_bytes

from ._board import PAGE, PLACES, Places

__all__ = ["Board", "Notice", "Reader"]

TRIES = 8  # of a reader, before it asks
META = 1 << 16  # bytes that are kept for the description of weights to come
F_SEAL_FUTURE_WRITE = 0x0010  # Linux 5.1; Python 3.11 has no name for it


def _up(count: int) -> int:
    return -(-count // PAGE) * PAGE


class Notice(NamedTuple):
    """That a version can be read."""

    version: int
    generation: int  # of the memfd


class Board:
    """The learner's end. One thread at a time may use `memory` and `put`; `newest` may be read by any.

    Raises OSError when the memory is not to be had.
    """

    def __init__(self) -> None:
        self.newest: Notice | None = None
        self.fd = -1
        self.sealed = True  # against writing by those it is handed to
        self._generation = 0
        self._place = 0  # of the newest
        self._memory: np.ndarray | None = None
        self._mapped: mmap.mmap | None = None
        self._places: Places | None = None
        self._held: list[weakref.ref[np.ndarray] | None] = [None] * PLACES  # what was packed into each

    def memory(self, count: int) -> np.ndarray | None:
        """`count` bytes that the next version may be packed into, contents undefined; None when that must be elsewhere, and copied.

        Readers leave that place alone from here on, until something else was `put` there.
        """
        if self._places is None or _up(count) + META > self._places.capacity or (place := self._unused()) is None:
            return None
        self._places.begin(place)
        # A view of the mapping and not of an array, so that all that is made of it refers to this one, and it is seen to go.
        assert self._mapped is not None  # it has places
        whole: np.ndarray = np.frombuffer(self._mapped, np.uint8, count, self._places.start(place))
        self._held[place] = weakref.ref(whole)
        return whole[:]

    def put(self, weights: PackedWeights) -> None:
        payload, meta = weights.payload, np.frombuffer(weights.meta, np.uint8)
        size = _up(payload.nbytes) + len(meta)
        places, place = self._places, self._place_of(payload)
        if places is None or place is None or size > places.capacity:
            place = self._unused()
            if places is None or place is None or size > places.capacity:
                capacity = _up(payload.nbytes) + max(META, 2 * _up(len(meta)))
                places, place = self._make(capacity + capacity // 8), 0
            places.begin(place)
            np.copyto(self._bytes(places.start(place), payload.nbytes), payload)
        self._bytes(places.start(place) + _up(payload.nbytes), len(meta))[:] = meta
        self._place = place
        self.newest = Notice(weights.version, self._generation)  # first: a reader confirms what it finds, and the learner must know of that
        places.finish(place, weights.version, weights.digest, payload.nbytes, len(meta))

    def _bytes(self, start: int, count: int) -> np.ndarray:
        assert self._memory is not None
        return self._memory[start : start + count]

    def _unused(self) -> int | None:
        """The place that was written longest ago, of those that nobody here refers to; None if there is none."""
        for place in ((self._place + 1 + i) % PLACES for i in range(PLACES - 1)):
            held = self._held[place]
            if held is None or held() is None:
                return place
        return None

    def _place_of(self, payload: np.ndarray) -> int | None:
        """Which of the places it lies in, as `memory` gave it."""
        if self._memory is None or self._places is None:
            return None
        at = payload.ctypes.data - self._memory.ctypes.data
        return next((place for place in range(PLACES) if at == self._places.start(place)), None)

    def _make(self, capacity: int) -> Places:
        fd = os.memfd_create("echo-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            size = PAGE + PLACES * _up(capacity)
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
        self.fd, self._mapped, self._memory, self._places = fd, mapped, np.frombuffer(mapped, np.uint8), Places(mapped, write=True)
        self._generation += 1
        self._place, self._held = 0, [None] * PLACES
        return self._places

    def close(self) -> None:
        self.newest, self._memory, self._mapped, self._places = None, None, None, None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Reader:
    """A worker's end, over the descriptor of one generation, which can be closed afterwards.

    Raises OSError when it cannot be mapped, ValueError when it is no board.
    """

    def __init__(self, fd: int) -> None:
        self._places = Places(mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ))

    def copy(self, least: int) -> tuple[int, bytes, np.ndarray, int] | None:
        """The newest version, its description, payload and digest; None when versions come faster than they can be copied here, or when
        version `least`, which the learner has said is there, is not.

        Raises ProtocolError when they would reach past the memory.
        """
        for _ in range(TRIES):
            found = self._places.look()
            if found is None or found.version < least:
                continue
            payload = aligned_bytes(found.payload)
            if (meta := found.copy(payload)) is not None:
                return found.version, meta, payload, found.digest
        return None

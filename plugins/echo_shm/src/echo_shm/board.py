"""The memory in which a learner publishes its weights for all workers of the machine: a few places in a memfd, written in turn (board.hpp).

No side waits for the other. A version stays in its place until two more were published. A reader that is slower than that sees that its place was
written meanwhile, and begins again with the newest version. The first page says which version that is, so a reader that gets little processor
time does not follow notices that are already old when it reads them.
The memfd is sealed: processes that receive it can only read it (`Board.sealed`: Linux 5.1).

Small weights use all places, so that a reader has the time of two publishes. Large ones use one place, and a second only while a reader or a
sender still uses the older version: a place has no memory before it is used.

Weights are packed directly into memory from `Board.memory`, where workers read them, because a copy would take as long again. The learner itself refers to
the same memory (for workers that get weights over a socket), so it is written again only when nothing in the learner refers to it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from echo_core.wire.weights import PackedWeights, aligned_bytes

from ._board import PAGE, PLACES, Places

__all__ = ["Board", "Notice", "Reader"]

TRIES = 8  # attempts of a reader before it asks the learner
LARGE = 64 << 20  # bytes; for smaller weights, memory is less important than that nobody waits
META = 1 << 16  # bytes reserved for the description of future weights
F_SEAL_FUTURE_WRITE = 0x0010  # Linux 5.1; Python 3.11 has no name for it


def _up(count: int) -> int:
    return -(-count // PAGE) * PAGE


class Notice(NamedTuple):
    """Says that a version can be read."""

    version: int
    generation: int  # counts the memfds
    digest: int = 0  # of the version; a notice to a worker does not have it


class Board:
    """The learner's end. One thread at a time may use `memory` and `put`; `newest` may be read by any.

    Args:
        readers: says whether a worker may be reading the newest version.

    Raises OSError if the memory cannot be allocated.
    """

    def __init__(self, readers: Callable[[], bool] = lambda: True) -> None:
        self._readers = readers
        self.newest: Notice | None = None
        self.fd = -1
        self.sealed = True  # whether processes that receive it cannot write to it
        self._generation = 0
        self._place = 0  # the place of the newest version
        self._memory: np.ndarray | None = None
        self._mapped: mmap.mmap | None = None
        self._places: Places | None = None
        self._held: list[weakref.ref[np.ndarray] | None] = [None] * PLACES  # the arrays that were packed into each place
        self._reserved = [0] * PLACES  # bytes of each place that have memory

    def memory(self, count: int) -> np.ndarray | None:
        """`count` bytes, contents undefined, into which the next version may be packed; None if it must be packed elsewhere and copied.

        From here on, readers do not read that place until something else was `put` there.
        """
        size = _up(count) + META
        if count < LARGE and (self._places is None or size > self._places.capacity):
            return None
        place = self._place_for(size)
        if place is None or self._places is None:
            return None
        self._places.begin(place)
        # A view of the mapping and not of an array, so that all arrays made of it refer to this one, and its end can be noticed.
        assert self._mapped is not None  # it has places
        whole: np.ndarray = np.frombuffer(self._mapped, np.uint8, count, self._places.start(place))
        self._held[place] = weakref.ref(whole)
        return whole[:]

    def put(self, weights: PackedWeights) -> None:
        payload, meta = weights.payload, np.frombuffer(weights.meta, np.uint8)
        size = _up(payload.nbytes) + len(meta)
        places, place = self._places, self._place_of(payload)
        if places is None or place is None or size > places.capacity:
            place = self._place_for(_up(payload.nbytes) + max(META, 2 * _up(len(meta))), anew=True)
            places = self._places
            assert places is not None and place is not None  # or memory was lacking
            places.begin(place)
            np.copyto(self._bytes(places.start(place), payload.nbytes), payload)
        self._reserve(place, size)
        self._bytes(places.start(place) + _up(payload.nbytes), len(meta))[:] = meta
        self._place = place
        # First: a reader may confirm this version at once, and the learner must know it then.
        self.newest = Notice(weights.version, self._generation, weights.digest)
        places.finish(place, weights.version, weights.digest, payload.nbytes, len(meta))

    def _bytes(self, start: int, count: int) -> np.ndarray:
        assert self._memory is not None
        return self._memory[start : start + count]

    def _place_for(self, size: int, anew: bool = False) -> int | None:
        """A place for `size` bytes, with memory. None if all are in use; with `anew`, there are new places then."""
        if self._places is None or size > self._places.capacity:
            return self._make(size)
        place = self._unused(size)
        if place is None:
            return self._make(size) if anew else None
        if size >= LARGE and place == self._place and any(self._reserved[other] for other in range(PLACES) if other != place):
            return self._make(size)  # nobody uses the other places any more, but only a new memfd gives their memory back
        self._reserve(place, size)
        return place

    def _unused(self, size: int) -> int | None:
        """Among the places to which nothing in this process refers, the one that was written longest ago; None if all are in use.

        Large weights take the place of the newest version if it was withdrawn and no worker reads it, else one that has memory.
        """
        order = [(self._place + 1 + i) % PLACES for i in range(PLACES - 1)]
        if size >= LARGE:
            order.sort(key=lambda place: self._reserved[place] == 0)
            if self.newest is None and not self._readers():
                order.insert(0, self._place)
        return next((place for place in order if (held := self._held[place]) is None or held() is None), None)

    def _reserve(self, place: int, size: int) -> None:
        """Memory for `size` bytes in this place, so that a lack of it is an error here and not a SIGBUS in a reader."""
        if size > self._reserved[place]:
            assert self._places is not None
            os.posix_fallocate(self.fd, self._places.start(place), size)
            self._reserved[place] = size

    def _place_of(self, payload: np.ndarray) -> int | None:
        """The place in which `payload` lies, if its memory came from `memory`."""
        if self._memory is None or self._places is None:
            return None
        at = payload.ctypes.data - self._memory.ctypes.data
        return next((place for place in range(PLACES) if at == self._places.start(place)), None)

    def _make(self, least: int) -> int:
        """A new memfd, whose places have room for `least` bytes and a little more; returns a place of it."""
        capacity = _up(least + least // 8)
        large = least >= LARGE
        if large:
            self.close()  # first, so that the old memory and the new are not needed at the same time
        fd = os.memfd_create("echo-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            size = PAGE + PLACES * capacity
            os.ftruncate(fd, size)
            os.posix_fallocate(fd, 0, PAGE + least if large else size)  # so a lack of memory is an error here, and not a SIGBUS in a reader
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
        self._reserved = [least, *[0] * (PLACES - 1)] if large else [capacity] * PLACES
        return 0

    def close(self) -> None:
        self.newest, self._memory, self._mapped, self._places = None, None, None, None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Reader:
    """A worker's end, over the descriptor of one generation, which can be closed afterwards.

    Raises OSError if it cannot be mapped, ValueError if it is not a board.
    """

    def __init__(self, fd: int) -> None:
        self._places = Places(mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ))

    def copy(self, least: int) -> tuple[int, bytes, np.ndarray, int] | None:
        """The newest version, its description, payload and digest. None if versions come faster than they can be copied here, or if
        version `least`, which the learner has announced, is not there.

        Raises ProtocolError if they would reach past the memory.
        """
        for _ in range(TRIES):
            found = self._places.look()
            if found is None or found.version < least:
                continue
            payload = aligned_bytes(found.payload)
            if (meta := found.copy(payload)) is not None:
                return found.version, meta, payload, found.digest
        return None

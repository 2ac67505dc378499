"""The weights of a server: their numbers, the memory into which they are packed, and how they reach the listeners."""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...wire.protocol import MAX_NUMBER
from ...wire.weights import PackedWeights, aligned_bytes, pack
from ..open_listeners import on_each

if TYPE_CHECKING:
    from ...store.storage import Storage
    from ...wire.transport import Listener

__all__ = ["Published", "Publishing"]

LARGE = 64 << 20  # bytes; the memory of older weights of at least this size is freed before the next ones take as much
FREED_SECONDS = 0.25  # how long this may take while nobody is being sent them: threads of the listeners drop their references


class Published(NamedTuple):
    """The result of `Server.publish`: the version and the digest of its bytes. Workers send both back as receipts."""

    version: int
    digest: int


class Publishing:
    """Thread-safe.

    Attributes:
        learner: the id of this server, with which the weights say who numbered them.
        newest: the newest weights; None before there are some, and while the next large ones are being packed.
        version: their number, and the highest one that `publish` has given so far.
        published_at: when they were given to the listeners (`time.monotonic()`).
        listeners: those that are offered the weights.
        lock: held while weights are packed and given to the listeners, so that versions reach these in order.
    """

    def __init__(self) -> None:
        self.learner = secrets.token_hex(8)
        self.newest: PackedWeights | None = None
        self.version = 0
        self.published_at = 0.0
        self.listeners: Sequence[Listener] = ()
        self.lock = threading.Lock()

    def publish(self, tree: Any, version: int | None, storages: Iterable[Storage]) -> Published:
        """See `Server.publish`; `storages` are the server's."""
        with self.lock:
            number = self._number(version)
            packed = pack(tree, number, memory=self._memory, learner=self.learner)
            self._offer(packed, storages)
        return Published(packed.version, packed.digest)

    def pass_on(self, packed: PackedWeights, storages: Iterable[Storage]) -> bool:
        """Offer what another server has published. False if these weights, or newer ones of the same learner, were offered before."""
        with self.lock:
            if self.newest is not None and packed.learner == self.newest.learner and packed.version <= self.version:
                return False
            self._offer(packed, storages)
        return True

    def listening(self, listeners: Sequence[Listener]) -> None:
        """Offer the weights to these listeners from now on; `lock` is held. Those that have the present ones already do nothing."""
        self.listeners = listeners
        if self.newest is not None:
            on_each(listeners, partial(_publish, self.newest))

    def at_least(self, version: int) -> None:
        """`publish` gives only numbers above this one."""
        with self.lock:
            self.version = max(self.version, version)

    def _number(self, version: int | None) -> int:
        if version is None:
            if self.version == MAX_NUMBER:
                raise ValueError(f"there is no version above {MAX_NUMBER}, which was published; make a new server")
            return self.version + 1
        if isinstance(version, bool) or not isinstance(version, (int, np.integer)):
            raise TypeError(f"version must be a whole number, not {version!r}")
        if not self.version < version <= MAX_NUMBER:
            newest = f"the newest, {self.version}," if self.version else "0"
            raise ValueError(f"version must be above {newest} and at most {MAX_NUMBER}, not {version}; give none, and it becomes {self.version + 1}")
        return int(version)

    def _memory(self, count: int) -> np.ndarray:
        """Memory for the next version. If a transport has memory that workers of this machine read, it is used."""
        if self.newest is not None and self.newest.payload.nbytes >= LARGE:
            self._withdraw()
        for listener in self.listeners:
            if (memory := listener.weights_memory(count)) is not None:
                return memory
        return aligned_bytes(count)

    def _withdraw(self) -> None:
        """Let go of the present weights. Their memory is free afterwards, unless they are being sent to somebody."""
        assert self.newest is not None
        payload = self.newest.payload
        memory = weakref.ref(payload.base if isinstance(payload.base, np.ndarray) else payload)  # on which all views of it depend
        del payload
        self.newest = None
        on_each(self.listeners, _withdraw)
        until = time.monotonic() + FREED_SECONDS
        while memory() is not None and time.monotonic() < until:
            time.sleep(0.001)

    def _offer(self, packed: PackedWeights, storages: Iterable[Storage]) -> None:
        self.newest, self.version, self.published_at = packed, packed.version, time.monotonic()
        for storage in storages:
            storage.published(packed.version)
        on_each(self.listeners, partial(_publish, packed))


def _withdraw(listener: Listener) -> None:
    listener.withdraw()


def _publish(packed: PackedWeights, listener: Listener) -> None:
    listener.publish(packed)

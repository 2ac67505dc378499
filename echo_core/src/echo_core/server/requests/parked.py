"""The requests of one server that are answered later: how many there may be, and what becomes of them when somebody leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ...base.errors import ClosedError, ConfigError, EchoError
from ...wire.later import Later, ParkedRequest, Parking

if TYPE_CHECKING:
    from ...wire.later import Pack
    from ...wire.peer import Peer

__all__ = ["MOST_PARKED", "MOST_PARKED_PER_CLIENT", "ParkedRequests"]

MOST_PARKED, MOST_PARKED_PER_CLIENT = 16_384, 128
BYTES_OF_EACH = 1024  # about what one parked request takes in memory, beside its body and blob


class ParkedRequests(Parking):
    """The parked requests of one server. Thread-safe. It does not refer to the server, because the function that answers refers to this object.

    Args:
        connected: whether a client is connected. It is true when the client makes its first request.
        most, most_per_client: see `Server`.
    """

    def __init__(self, connected: Callable[[Peer], bool], most: int, most_per_client: int) -> None:
        for name, value in (("max_parked", most), ("max_parked_per_client", most_per_client)):
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} must be a whole number, at least 1, not {value!r}")
        self.most, self.most_per_client = most, most_per_client
        self._connected = connected
        self._lock = threading.Lock()
        self._of: dict[int, set[ParkedRequest]] = {}  # by id(peer)
        self._count = 0
        self._total = 0
        self._refused = 0
        self._closed = False
        self._unanswerable: SimpleQueue[ParkedRequest | None] = SimpleQueue()  # the garbage collector may put into it, whatever locks are held
        self._thread: threading.Thread | None = None

    def __bool__(self) -> bool:
        """Whether there is a thread to end."""
        return self._thread is not None

    def park(self, peer: Peer, later: Later, body: dict[str, Any], blob: bytes, pack: Pack) -> None:
        """An operation has returned `later` for this request; `pack` makes the payload of an answer. If the request cannot be parked, its answer
        is the reason."""
        request = later._request
        if not request.begin(self, peer, pack):
            return
        try:
            self._add(peer, request, BYTES_OF_EACH + len(repr(body)) + len(blob))
        except EchoError as error:
            with self._lock:
                self._refused += 1
            request.end(error)
            return
        if not self._connected(peer):  # it left before the request was added, so nobody else would end the request
            self.forget(peer)

    def _add(self, peer: Peer, request: ParkedRequest, size: int) -> None:
        account = peer.memory
        if account is not None:
            account.take(size)
        added = False
        try:
            with self._lock:
                count = len(self._of.get(id(peer), ()))
                if self._closed:
                    raise ClosedError("the server is closing")
                if count >= self.most_per_client:
                    raise EchoError(f"{count} requests of this connection wait for an answer; ask less at once, or raise Server(max_parked_per_client=)")
                if self._count >= self.most:
                    raise EchoError(f"{self._count} requests of all clients wait for an answer; ask again later, or raise Server(max_parked=)")
                if self._thread is None:
                    self._thread = _start(self._unanswerable)
                if not request.over:  # otherwise it was answered meanwhile
                    request.size = size
                    self._of.setdefault(id(peer), set()).add(request)
                    self._count += 1
                    self._total += 1
                    added = True
        finally:
            if account is not None and not added:
                account.give(size)

    def left(self, request: ParkedRequest) -> None:
        peer = request.peer
        with self._lock:
            theirs = self._of.get(id(peer))
            if theirs is None or request not in theirs:
                return
            theirs.remove(request)
            if not theirs:
                del self._of[id(peer)]
            self._count -= 1
        if peer is not None and peer.memory is not None:
            peer.memory.give(request.size)

    def dropped(self, request: ParkedRequest) -> None:
        self._unanswerable.put(request)

    def forget(self, peer: Peer) -> None:
        """A client has left. The caller holds no lock."""
        with self._lock:
            theirs = list(self._of.get(id(peer), ()))
        for request in theirs:
            request.end(None)

    def close(self, why: str = "the server was closed") -> None:
        """The server closes or drains: every request is answered with ClosedError, also those to come. Idempotent."""
        with self._lock:
            self._closed = True
            everybody = [request for theirs in self._of.values() for request in theirs]
            thread, self._thread = self._thread, None
        for request in everybody:
            request.end(ClosedError(f"{why} before it had an answer"))
        if thread is not None:
            self._unanswerable.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def stats(self) -> dict[str, int]:
        """How many requests wait now, and how many were parked, or refused, since the server was made."""
        with self._lock:
            return {"parked": self._count, "parked_total": self._total, "parked_refused_total": self._refused}


def _start(unanswerable: SimpleQueue[ParkedRequest | None]) -> threading.Thread:
    thread = threading.Thread(target=_fail, args=(unanswerable,), name="echo-parked", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise EchoError(f"the server has no thread for requests that are answered later: {error}") from error
    return thread


def _fail(unanswerable: SimpleQueue[ParkedRequest | None]) -> None:
    while (request := unanswerable.get()) is not None:
        request.end(EchoError("no answer was given: the server dropped the request"))
        del request  # it refers to who asked

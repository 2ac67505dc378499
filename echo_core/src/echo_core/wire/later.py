"""Answers that are given later than the operation returns: `Later` for the code that answers, `Parked` for the code that waits for the answer and sends it."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..base.errors import EchoError
from .protocol import pack_error

if TYPE_CHECKING:
    from .peer import Peer
    from .protocol import Blob, Buffer

__all__ = ["Answer", "Later", "ParkedRequest", "Parking"]

_log = logging.getLogger("echo")

Answer = tuple[dict[str, Any], "Blob"]  # of an operation: a body and a blob
Pack = Callable[[dict[str, Any], "Blob"], "list[Buffer]"]


class Parking(ABC):
    """The interface to the account of requests that wait for their answers. The server keeps it."""

    @abstractmethod
    def left(self, request: ParkedRequest) -> None:
        """The request waits no longer."""

    @abstractmethod
    def dropped(self, request: ParkedRequest) -> None:
        """Nobody can answer the request any more. It is called by the garbage collector, so it takes no lock."""


class Later:
    """An operation returns it if the answer comes later: see `Server.serve`.

        def next_task(server, peer, body, blob):
            waiting.append(later := Later(peer))
            return later

        waiting.popleft()({"task": 7}, data)    # on any thread, at any time

    It is called with the answer, as `later(body, blob)`. The first answer or error counts. Every method may be called from any thread, also
    before the operation has returned.

    Args:
        peer: who asked; without it, `peer` is None until the operation has returned.

    If nobody refers to it any more and it was not answered, the caller gets EchoError "no answer was given". If the server closes first,
    they get ClosedError.
    """

    __slots__ = ("__weakref__", "_request")

    def __init__(self, peer: Peer | None = None) -> None:
        self._request = ParkedRequest(peer)

    @property
    def peer(self) -> Peer | None:
        """Who asked."""
        return self._request.peer

    @property
    def over(self) -> bool:
        """Whether it was answered, or cannot be answered any more."""
        return self._request.over

    def __call__(self, body: dict[str, Any], blob: Blob = b"") -> bool:
        """Answer with a JSON object and bytes, of any size as in `Server.serve`. They may be changed when this returns.

        Returns:
            False if there was an answer before, or if the caller is gone.

        Raises:
            TypeError, ValueError: the body is no JSON object. EchoError: the server may not hold so large an answer for this client. In
                both cases the request is not answered yet.
        """
        if not isinstance(body, dict):
            raise TypeError(f"the body of an answer must be a dict, not {body!r}")
        return self._request.answer((body, blob))

    def fail(self, error: BaseException | str) -> bool:
        """Answer with an error: the caller gets an exception with its text. Returns the same as an answer."""
        return self._request.answer(EchoError(error) if isinstance(error, str) else error)

    def on_gone(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called, once, if the request ends without an answer of yours: the caller has left, too many requests are parked,
        or the server closes. It is called on any thread and must not wait; it is called at once if that has happened already."""
        self._request.on_gone(callback)

    def send_to(self, send: Callable[[list[Buffer]], object]) -> None:
        """For a transport, when `Sink.request` has returned this: have the answer's payload given to `send`, once, now or later and on any thread."""
        self._request.send_to(send)

    def __del__(self) -> None:
        self._request.dropped()

    def __repr__(self) -> str:
        asked = "nobody yet" if self.peer is None else self.peer.name
        return f"<Later asked by {asked}{', over' if self.over else ''}>"


class ParkedRequest:
    """One request that an operation answers later. Thread-safe.

    Attributes:
        peer: who asked; None until the operation has returned, if the operation did not say.
        over: whether it was answered, or cannot be answered any more.
        size: bytes that it makes the server hold.
    """

    def __init__(self, peer: Peer | None) -> None:
        self.peer = peer
        self.over = False
        self.size = 0
        self._lock = threading.Lock()
        self._parking: Parking | None = None
        self._pack: Pack | None = None
        self._early: Any = None  # what was given before the operation had returned
        self._payload: list[Buffer] | None = None  # what was given before there was `_send`
        self._send: Callable[[list[Buffer]], object] | None = None
        self._ended = False  # without an answer of the operation
        self._callbacks: list[Callable[[], object]] = []

    # ------------------------------------------------------------------------ for who answers

    def answer(self, given: Any) -> bool:
        """Answer with (body, blob) or an exception; see `Later`."""
        with self._lock:
            if self.over:
                return False
            parking = self._parking
            if parking is None:
                self._early = given
                self.over = True
                return True
            payload = self._packed(given)
            self.over = True
            self._callbacks.clear()
            send, self._send = self._send, None
            if send is None:
                self._payload = payload
        parking.left(self)
        if send is not None:
            send(payload)
        return True

    def _packed(self, given: Any) -> list[Buffer]:
        if isinstance(given, BaseException):
            return [pack_error(given)]
        assert self._pack is not None
        return self._pack(*given)

    def on_gone(self, callback: Callable[[], object]) -> None:
        with self._lock:
            if not self.over:
                self._callbacks.append(callback)
            if not self._ended:
                return
        callback()

    def dropped(self) -> None:
        """The garbage collector calls it, so it takes no lock."""
        if not self.over and self._parking is not None:
            self._parking.dropped(self)

    # -------------------------------------------------------- for the server and its transports

    def begin(self, parking: Parking, peer: Peer, pack: Pack) -> bool:
        """The operation has returned. False if it was answered before; then `send_to` sends the answer. `pack(body, blob)` makes the payload of an answer."""
        with self._lock:
            if self._parking is not None or (self.peer is not None and self.peer is not peer):
                raise EchoError("the operation returned a Later that belongs to another request; make a new one for each")
            self.peer, self._parking, self._pack = peer, parking, pack
            if not self.over:
                return True
            early, self._early = self._early, None
            try:
                self._payload = self._packed(early)
            except Exception as error:
                if not isinstance(error, EchoError):
                    _log.exception("an answer to %s cannot be sent", peer.name)
                self._payload = [pack_error(error)]
            return False

    def send_to(self, send: Callable[[list[Buffer]], object]) -> None:
        """See `Later.send_to`."""
        with self._lock:
            payload, self._payload = self._payload, None
            if payload is None and not self.over:
                self._send = send
        if payload is not None:
            send(payload)

    def end(self, error: EchoError | None) -> None:
        """There will be no answer of the operation: the caller gets `error`, or has left (None)."""
        with self._lock:
            if self.over:
                return
            self.over = self._ended = True
            callbacks, self._callbacks = self._callbacks, []
            send, self._send = self._send, None
            payload: list[Buffer] | None = None if error is None else [pack_error(error)]
            if send is None:
                self._payload = payload
            parking = self._parking
        if parking is not None:
            parking.left(self)
        if send is not None and payload is not None:
            send(payload)
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.exception("a callback of Later.on_gone failed")

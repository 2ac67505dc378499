"""Accepts clients from listening sockets while there is room, and turns them away when descriptors run out."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from ..sockets import free, left_at_fork, name_of, unpaced
from .complaints import Seldom

__all__ = ["ClientAcceptor"]

PAUSE = 0.25  # seconds without accepting, if nothing else helps
REFUSALS_AT_ONCE = 16  # between two such pauses
ACCEPTS_AT_ONCE = 64  # after so many, the handshakes that have begun are served
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
OUT_OF_MEMORY = (errno.ENOBUFS, errno.ENOMEM)


class ClientAcceptor:
    """The listening sockets of one control plane. Only the control plane's thread calls it. It accepts clients from the beginning.

    Args:
        listening: sockets that do not block; `close` frees them.
        selector: calls the registered functions with the events.
        complaints: logs errors.
        crowded: returns None if one more client can come in, otherwise the time (`time.monotonic()`) at which to ask again.
        let_in: is called first with a client's socket.
        welcome: is called then with the socket and a name for it.
        turn_away: returns the answer to a client for which there is no descriptor; b"" for no answer.

    Attributes:
        is_open: whether clients are accepted.
        opens_at: while they are not, the `time.monotonic()` from which they are accepted again.
    """

    def __init__(
        self,
        listening: Iterable[socket.socket],
        selector: selectors.BaseSelector,
        complaints: Seldom,
        crowded: Callable[[], float | None],
        let_in: Callable[[socket.socket], None],
        welcome: Callable[[socket.socket, str], None],
        turn_away: Callable[[], bytes],
    ) -> None:
        self.is_open = False
        self.opens_at = 0.0
        self._listening = list(listening)
        self._selector = selector
        self._complaints = complaints
        self._crowded = crowded
        self._let_in = let_in
        self._welcome = welcome
        self._turn_away = turn_away
        self._reserve: int | None = _spare_descriptor()
        self.open()

    def open(self) -> None:
        """Accept from now on."""
        for sock in self._listening:
            self._selector.register(sock, selectors.EVENT_READ, self._acceptor(sock))
        self.is_open = True

    def _acceptor(self, listening: socket.socket) -> Callable[[int], None]:
        return lambda events: self._accept(listening)

    def _pause(self, until: float) -> None:
        if self.is_open:
            for sock in self._listening:
                self._selector.unregister(sock)
        self.is_open = False
        self.opens_at = until

    def close(self) -> None:
        """Accept no more, and free the address."""
        self._pause(0.0)
        free(self._listening)
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        # The owner of these functions holds this object. The reference cycle would keep a closed learner's descriptors until the garbage collector runs.
        del self._crowded, self._let_in, self._welcome, self._turn_away

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if not self.is_open:
                return
            if (until := self._crowded()) is not None:
                self._pause(until)
                return
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._cannot_accept(listening, error)
                return
            left_at_fork(sock)
            unpaced(sock)
            self._let_in(sock)
            self._welcome(sock, name_of(address))

    def _cannot_accept(self, listening: socket.socket, error: OSError) -> None:
        if error.errno not in OUT_OF_DESCRIPTORS + OUT_OF_MEMORY:
            # The error belongs to the connection that was about to be accepted (see accept(2)), so go on with the next one.
            self._complaints.warn("a client could not be accepted: %s", str(error))
            return
        self._complaints.warn(
            "no more clients can be accepted: %s; those connected are served on (raise the limit:"
            " ulimit -n)",
            str(error),
        )
        if error.errno in OUT_OF_DESCRIPTORS and self._reserve is not None:
            self._refuse(listening)
        self._pause(time.monotonic() + PAUSE)

    def _refuse(self, listening: socket.socket) -> None:
        """Accept one client after another with a descriptor that is reserved for this, and tell them why they are refused.

        If they were left in the queue, they would wait for an answer in front of clients that come when there
        are descriptors again, and the selector would report them to this thread again and again.
        """
        assert self._reserve is not None
        os.close(self._reserve)
        self._reserve = None
        try:
            for _ in range(REFUSALS_AT_ONCE):
                sock, _ = listening.accept()
                self._let_in(sock)
                with sock, suppress(OSError):  # the client may have given up
                    if reason := self._turn_away():
                        sock.setblocking(False)
                        sock.send(reason)
                        # Read its first bytes: a close with unread bytes would reset the connection, and the answer would be lost.
                        sock.recv(65536)
        except OSError:
            pass  # no client is left, or another thread took the descriptor
        self._reserve = _spare_descriptor()


def _spare_descriptor() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None

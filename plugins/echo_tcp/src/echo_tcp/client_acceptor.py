"""Where clients come in: accepting them from listening sockets while there is room, and turning them away when descriptors run out."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from .complaints import Seldom
from .sockets import free, left_at_fork, name_of, unpaced

__all__ = ["ClientAcceptor"]

PAUSE = 0.25  # seconds without accepting when nothing else helps
REFUSALS_AT_ONCE = 16  # between such pauses
ACCEPTS_AT_ONCE = 64  # then the handshakes under way are looked after
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
OUT_OF_MEMORY = (errno.ENOBUFS, errno.ENOMEM)


class ClientAcceptor:
    """The listening sockets of one control plane, in whose thread everything here is called. It is open when made.

    Args:
        listening: sockets that do not block; freed by `close`.
        selector: calls what is registered with it, with the events.
        complaints: where trouble goes.
        crowded: None when one more client can come in, else the time (`time.monotonic()`) at which to ask again.
        let_in: is given a client's socket first.
        welcome: is given it then, and what to call it.
        turn_away: what to tell a client for whom there is no descriptor; b"" says nothing.

    Attributes:
        is_open: whether clients are accepted.
        opens_at: `time.monotonic()` at which they are again, while they are not.
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
        # Who gave them holds this: the circle would keep the descriptors of a closed learner until Python looks for circles.
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
            # An error of the connection that was about to be accepted (see accept(2)): the next.
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
        """Accept with the descriptor kept for this, one client after another, to say why not.

        Left in the queue they would wait for an answer, in front of those who come when there are
        descriptors again, and this thread would be told of them again and again.
        """
        assert self._reserve is not None
        os.close(self._reserve)
        self._reserve = None
        try:
            for _ in range(REFUSALS_AT_ONCE):
                sock, _ = listening.accept()
                self._let_in(sock)
                with sock, suppress(OSError):  # it may have given up
                    if reason := self._turn_away():
                        sock.setblocking(False)
                        sock.send(reason)
                        # What it said already: closing over it would take the answer back.
                        sock.recv(65536)
        except OSError:
            pass  # nobody is left, or somebody else took the descriptor
        self._reserve = _spare_descriptor()


def _spare_descriptor() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None

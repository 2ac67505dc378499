"""Accepts TCP connections for `echo_net.channel`."""

from __future__ import annotations

import os
import selectors
import socket
from abc import abstractmethod
from collections.abc import Mapping

from echo_core.base.address import Address
from echo_net.channel import Acceptor, Channel
from echo_net.network.connection_rate import ConnectionRateLimit

from ..sockets import free, left_at_fork, listen_on, name_of

__all__ = ["SocketAcceptor"]

BACKLOG = 256  # a TLS handshake costs the learner a ms even for unauthenticated clients, so only so many wait when accepting stops


class SocketAcceptor(Acceptor):
    """See `echo_net.channel.Acceptor`. `receive_buffer` is in bytes (0: it grows as needed), `rate` in new connections a second."""

    def __init__(self, scheme: str, host: str, port: int, receive_buffer: int, rate: float) -> None:
        self._sockets, port = listen_on(host, port, receive_buffer, BACKLOG)
        self.address = Address(scheme, host, port)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        for sock in self._sockets:
            self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._rate_limit = ConnectionRateLimit(rate)
        self._rate_limit.watch(self._sockets, str(self.address))

    @abstractmethod
    def channel(self, sock: socket.socket, peer: str) -> Channel:
        """The channel of a client's socket, which does not block."""

    def counts(self) -> Mapping[str, int]:
        return {"held_off_total": self._rate_limit.held_off}

    def accept(self) -> Channel:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._wake:
                    raise OSError("closed")
                listening = key.fileobj
                assert isinstance(listening, socket.socket)
                try:
                    plain, address = listening.accept()
                except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                    continue
                # Errors from here on concern only this client. An OSError of accept() concerns the learner, and makes the listener pause.
                left_at_fork(plain)
                plain.setblocking(False)
                self._rate_limit.let_in(plain)
                return self.channel(plain, name_of(address))

    def shutdown(self) -> None:
        os.eventfd_write(self._wake, 1)
        self._rate_limit.close()

    def close(self) -> None:
        self._selector.close()
        free(self._sockets)
        os.close(self._wake)

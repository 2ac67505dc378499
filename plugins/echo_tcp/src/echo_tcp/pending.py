"""A client between `accept` and the end of its handshake, on a non-blocking socket."""

from __future__ import annotations

import secrets
import selectors
import socket
import time
from typing import Any

from echo_core.base.errors import EchoError, ProtocolError
from echo_core.wire.handshake import ServerHandshake

__all__ = ["Pending"]

HANGING_UP_SECONDS = 1.0


class Pending:
    """One handshake.

    Attributes:
        handshake: None for a client of the original protocol, which only gets a greeting.
        began, deadline: values of time.monotonic().
        unsent: bytes that the socket has not taken yet.
        hanging_up: the client is refused; its bytes are discarded until it has read the reason and closes.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        handshake: ServerHandshake | None,
        greeting: bytes,
        deadline: float,
    ) -> None:
        self.sock = sock
        self.address = address
        self.handshake = handshake
        self.greeting = greeting
        self.began = time.monotonic()
        self.deadline = deadline
        self.unsent = bytearray(greeting)
        self.hanging_up = False

    @property
    def events(self) -> int:
        """The events that the selector should watch for."""
        waits = selectors.EVENT_READ if self.handshake is not None or self.hanging_up else 0
        return waits | (selectors.EVENT_WRITE if self.unsent else 0)

    def go_on(self, readable: bool) -> bool:
        """Read and answer. True if the handshake is done, or the refused client is gone.

        Raises EchoError if the client has to be turned away, and sets `hanging_up` if the reason can be
        sent to it; OSError if it is gone.
        """
        if readable:
            try:
                data = self.sock.recv(65536)
            except (BlockingIOError, InterruptedError):
                data = None
            if data == b"":
                if self.hanging_up:
                    return True
                raise ConnectionResetError("it hung up in its handshake")
            if data and not self.hanging_up:
                self._receive(data)
        self._send()
        if self.hanging_up:
            if not self.unsent:
                # A close with unread bytes would reset the connection, and the reason would be lost.
                self.sock.shutdown(socket.SHUT_WR)
            return False
        return self.handshake.done if self.handshake is not None else not self.unsent

    def _receive(self, data: bytes) -> None:
        assert self.handshake is not None
        try:
            self.unsent += self.handshake.receive(data)
        except EchoError:
            if self.handshake.refusal:
                self._hang_up(self.handshake.refusal)
                self._send()
                if not self.unsent:
                    self.sock.shutdown(socket.SHUT_WR)
            raise

    def _send(self) -> None:
        while self.unsent:
            try:
                sent = self.sock.send(self.unsent, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            del self.unsent[:sent]

    def refuse(self, code: str, text: str) -> None:
        """Turn the client away; `go_on` sends the reason."""
        if not self.hanging_up:
            self._hang_up(b"" if self.handshake is None else self.handshake.refuse(code, text))

    def _hang_up(self, refusal: bytes) -> None:
        self.hanging_up = True
        if self.handshake is None:
            self.unsent.clear()  # half a greeting is useless to the client
        self.unsent += refusal
        self.deadline = min(self.deadline, time.monotonic() + HANGING_UP_SECONDS)

    def too_slow(self, seconds: float) -> EchoError:
        """The error of a client whose deadline has passed."""
        if self.handshake is not None and not self.handshake.peer and not self.unsent:
            return ProtocolError(
                f"it said nothing for {seconds:g} s; a worker of the original Echo waits for the"
                ' learner to speak first: for those, listen with protocol="echo1"'
            )
        return ProtocolError(f"its handshake took more than {seconds:g} s")

    def hello(self) -> dict[str, Any]:
        """What the client said in its handshake, after that is done: client, name, role, base, pid, host."""
        if self.handshake is not None:
            return self.handshake.peer
        return {
            "client": secrets.token_hex(16),
            "name": f"echo1@{self.address}",
            "role": "worker",
            "base": 0,
            "table": "",
            "pid": 0,
            "host": self.address.rpartition(":")[0],
            "permissions": frozenset(("write",)),
        }

    def leftover(self) -> bytes:
        """The bytes that came after the handshake."""
        return b"" if self.handshake is None else self.handshake.leftover

"""A client between `accept` and the end of its handshake, on a non-blocking socket."""

from __future__ import annotations

import selectors
import socket
import time
from typing import TYPE_CHECKING, Any

from echo_core.base.errors import EchoError, ProtocolError
from echo_net.handshake import ServerHandshake

if TYPE_CHECKING:
    from echo_core.wire.identity import Claim

    from ..echo1 import Echo1Handshake
    from .holder import TcpHolder

__all__ = ["Pending"]

HANGING_UP_SECONDS = 1.0


class Pending:
    """One handshake.

    Attributes:
        began, deadline: time.monotonic().
        unsent: bytes the socket has not taken yet.
        claim, holder: its request for the client's id, once it has proven itself, and what will hold it (see echo_core.wire.identity).
        hanging_up: refused; what it sends is thrown away until it has read why and closes.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        handshake: ServerHandshake | Echo1Handshake,
        greeting: bytes,
        deadline: float,
    ) -> None:
        self.sock = sock
        self.address = address
        self.handshake = handshake
        self.began = time.monotonic()
        self.deadline = deadline
        self.unsent = bytearray(greeting)
        self.hanging_up = False
        self.claim: Claim | None = None
        self.holder: TcpHolder | None = None

    @property
    def events(self) -> int:
        """What the selector should watch for."""
        waits = selectors.EVENT_READ if not self.handshake.done or self.hanging_up else 0
        return waits | (selectors.EVENT_WRITE if self.unsent else 0)

    def go_on(self, readable: bool) -> bool:
        """Read and answer. True if the handshake is agreed or done, or the refused client is gone.

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
        return self.handshake.done or self.handshake.agreed

    def accept(self) -> None:
        """Let an agreed client in. The bytes to send for that are in `unsent` afterwards."""
        if not self.handshake.done:
            self.unsent += self.handshake.accept()

    def _receive(self, data: bytes) -> None:
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
            self._hang_up(self.handshake.refuse(code, text))

    def _hang_up(self, refusal: bytes) -> None:
        self.hanging_up = True
        if not refusal:
            self.unsent.clear()  # half a greeting says as much as none
        self.unsent += refusal
        self.deadline = min(self.deadline, time.monotonic() + HANGING_UP_SECONDS)

    def too_slow(self, seconds: float) -> EchoError:
        """The error of a client whose deadline has passed."""
        if not self.handshake.peer and not self.unsent:
            return ProtocolError(
                f"it said nothing for {seconds:g} s; a worker of the original Echo waits for the"
                ' learner to speak first: for those, listen with protocol="echo1"'
            )
        return ProtocolError(f"its handshake took more than {seconds:g} s")

    def hello(self) -> dict[str, Any]:
        """What is known of the client, once done: client, name, role, base, pid, host."""
        return self.handshake.peer

    def leftover(self) -> bytes:
        """What came behind the handshake."""
        return self.handshake.leftover

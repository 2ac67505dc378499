"""Messages of text over a WebSocket, for both ends. Source: RFC 6455; no extension is offered or accepted."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import struct
import threading
import time
from io import BufferedIOBase
from typing import BinaryIO

import numpy as np

__all__ = ["ABNORMAL", "NORMAL", "WebSocket", "WebSocketError", "accepted"]

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUED, _TEXT, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x8, 0x9, 0xA
NORMAL, WRONG, TOO_BIG, ABNORMAL = 1000, 1002, 1009, 1011


class WebSocketError(Exception):
    """The other end has broken the protocol, has sent too much, or has gone.

    Attributes:
        code: the status of the close frame that says so.
    """

    def __init__(self, message: str, code: int = WRONG) -> None:
        super().__init__(message)
        self.code = code


def accepted(key: str) -> str:
    """The header ``Sec-WebSocket-Accept`` that belongs to a key."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


class WebSocket:
    """One end of a connection whose handshake is done. One thread may receive while another sends.

    Args:
        connection: the socket; ``close`` closes it.
        incoming: a buffered reader of the socket, which may hold bytes already.
        client: whether this end is the client, which masks what it sends.
        most: the largest accepted message, in bytes.
    """

    def __init__(self, connection: socket.socket, incoming: BinaryIO | BufferedIOBase, *, client: bool, most: int) -> None:
        self._connection, self._incoming, self._client, self._most = connection, incoming, client, most
        self._sending = threading.Lock()
        self._ended = False

    def send(self, text: str) -> None:
        """Send one message. Raise OSError if the connection is broken."""
        self._frame(_TEXT, text.encode())

    def receive(self) -> str | None:
        """The next message, or None when the other end has closed the connection in order. Pings are answered meanwhile.

        Raises:
            WebSocketError: the other end breaks the protocol, its message is too large, or the connection ends in the middle.
            OSError: the connection is broken, or its timeout has passed.
        """
        message: bytearray | None = None
        while True:
            final, kind, data = self._next(self._most - len(message or b""))
            if kind == _CLOSE:
                self._frame(_CLOSE, data[:2])
                return None
            if kind == _PING:
                self._frame(_PONG, data)
            elif kind != _PONG:
                if (kind == _CONTINUED) != (message is not None):
                    raise WebSocketError("the frames of a message are out of order")
                message = (message or bytearray()) + data
                if final:
                    try:
                        return message.decode()
                    except UnicodeDecodeError:
                        raise WebSocketError("a message is not UTF-8", 1007) from None

    def end(self, code: int = NORMAL, *, linger: float = 0.0) -> None:
        """Tell the other end why this one closes the connection, and close it. What is not sent within a second is given up.

        Args:
            code: the status of the close frame.
            linger: for how many seconds at most the other end may go on sending. The system resets a connection that is closed with unread bytes, and the other
                end may then lose the last message.
        """
        until = time.monotonic() + linger
        try:
            self._connection.settimeout(1.0)
            self._frame(_CLOSE, struct.pack("!H", code))
            if linger:
                socket.socket.shutdown(self._connection, socket.SHUT_WR)
            while (left := until - time.monotonic()) > 0:
                self._connection.settimeout(left)
                if not self._connection.recv(1 << 16):
                    break
        except OSError:
            pass  # The other end has gone already, or takes too long.
        self.close()

    def close(self) -> None:
        """Close the connection at once, and wake a thread that receives."""
        try:
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)  # That of TLS would forget the encryption.
        except OSError:
            pass  # It has ended meanwhile.
        self._connection.close()

    def _next(self, room: int) -> tuple[bool, int, bytes]:
        first, second = self._exactly(2)
        final, kind, masked, length = bool(first & 0x80), first & 0xF, bool(second & 0x80), second & 0x7F
        if first & 0x70 or kind not in (_CONTINUED, _TEXT, _CLOSE, _PING, _PONG):
            raise WebSocketError("a frame is neither text nor control, or uses an extension that was not agreed")
        if masked == self._client:
            raise WebSocketError("a frame is masked although it comes from a server, or is not although it comes from a client")
        if kind >= _CLOSE and (length > 125 or not final):
            raise WebSocketError("a control frame is too long or is in parts")
        if length >= 126:
            length = int.from_bytes(self._exactly(2 if length == 126 else 8), "big")
        if kind < _CLOSE and length > room:
            raise WebSocketError(f"a message has more than {self._most} bytes", TOO_BIG)
        mask = self._exactly(4) if masked else b""
        data = self._exactly(length)
        return final, kind, _masked(data, mask) if mask else data

    def _exactly(self, count: int) -> bytes:
        try:
            data = self._incoming.read(count)
        except ValueError:
            data = b""  # Another thread has closed the connection.
        if len(data) < count:
            raise WebSocketError("the connection has ended without a close frame", ABNORMAL)
        return data

    def _frame(self, kind: int, data: bytes) -> None:
        masked = 0x80 if self._client else 0
        size = len(data)
        if size < 126:
            length = struct.pack("!B", masked | size)
        else:
            length = struct.pack("!BH", masked | 126, size) if size < 1 << 16 else struct.pack("!BQ", masked | 127, size)
        mask = os.urandom(4) if self._client else b""
        with self._sending:
            if self._ended:
                return  # Nothing may follow a close frame.
            self._ended = kind == _CLOSE
            self._connection.sendall(bytes([0x80 | kind]) + length + mask + (_masked(data, mask) if mask else data))


def _masked(data: bytes, mask: bytes) -> bytes:
    return np.bitwise_xor(np.frombuffer(data, np.uint8), np.resize(np.frombuffer(mask, np.uint8), len(data))).tobytes()

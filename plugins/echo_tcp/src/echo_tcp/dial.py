"""One attempt to reach a learner: connect, set the socket up, shake hands.

It is pure Python, because it happens once per link. The result is a file descriptor, which the native
engine takes over, and the learner's description of itself.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from echo_core.base.address import Address
from echo_core.base.errors import (
    ConnectionClosedError,
    EchoTimeoutError,
)
from echo_net.handshake import ClientHandshake

from .sockets import left_at_fork, unpaced

__all__ = ["KEEPALIVE", "Link", "connect", "dial_echo2", "receive_exactly"]

# A peer that vanishes while the link is idle is noticed after 5 + 3 * 5 seconds. While the link is
# busy, the engine itself checks for that: see worker/link.hpp.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


@dataclass
class Link:
    """A connected socket after its handshake.

    Attributes:
        socket: its blocking mode does not matter any more; the engine takes it over.
        rest: bytes that were read beyond the handshake.
        beat: seconds after which each end sends a sign of life.
        incarnation: identifies the run of the learner, which changes with a restart; "" with the original protocol.
    """

    socket: socket.socket
    rest: bytes = b""
    incarnation: str = ""
    beat: float = math.inf


def dial_echo2(
    address: Address,
    handshake: ClientHandshake,
    silence: float,
    send_buffer: int,
    seconds: float,
    dialling: Callable[[socket.socket], None],
) -> Link:
    """Connect and run `handshake`, in at most `seconds`.

    `dialling` gets the socket as soon as it exists; a shutdown of it ends the attempt.
    Raises the errors of the handshake; EchoTimeoutError, ConnectionClosedError and OSError mean
    that another attempt may succeed.
    """
    end = time.monotonic() + seconds
    sock = connect(address, send_buffer, seconds)
    try:
        dialling(sock)
        _send(sock, handshake.start(), end)
        while not handshake.done:
            data = _receive(sock, 1 << 16, end)
            if reply := handshake.receive(data):
                _send(sock, reply, end)
        beat = min(silence, handshake.peer["silence"]) / 3
        return Link(sock, bytes(handshake.leftover), handshake.peer["server"], beat)
    except BaseException:
        sock.close()
        raise


def connect(address: Address, send_buffer: int, seconds: float) -> socket.socket:
    """A socket that is connected and set up. OSError."""
    sock = socket.create_connection(address.endpoint, timeout=max(seconds, 0.001))
    left_at_fork(sock)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if send_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        unpaced(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _limit(sock: socket.socket, end: float) -> None:
    left = end - time.monotonic()
    if left <= 0:
        raise EchoTimeoutError("the learner did not finish the handshake in time")
    sock.settimeout(left)


def _send(sock: socket.socket, data: bytes, end: float) -> None:
    _limit(sock, end)
    try:
        sock.sendall(data)
    except TimeoutError as error:
        raise EchoTimeoutError("the learner does not read the handshake") from error


def _receive(sock: socket.socket, most: int, end: float) -> bytes:
    _limit(sock, end)
    try:
        data = sock.recv(most)
    except TimeoutError as error:
        raise EchoTimeoutError("the learner did not finish the handshake in time") from error
    if not data:
        raise ConnectionClosedError("the learner hung up during the handshake, as one with TLS (tcps://) or with checksum=true does")
    return data


def receive_exactly(sock: socket.socket, count: int, end: float) -> bytes:
    """So many bytes, until `end` (`time.monotonic()`). EchoTimeoutError, ConnectionClosedError."""
    data = b""
    while len(data) < count:
        data += _receive(sock, count - len(data), end)
    return data

"""One attempt to reach a learner: connect, set the socket up, shake hands.

It is pure Python, because it happens once per link. The result is a file descriptor, which the native
engine takes over, and the learner's description of itself.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from echo_core.base.address import Address
from echo_core.base.errors import (
    ConnectionClosedError,
    EchoTimeoutError,
    HandshakeRefused,
    ProtocolError,
    SpecError,
)
from echo_core.spec.spec import Spec
from echo_core.wire.handshake import ClientHandshake

from .sockets import left_at_fork, unpaced

__all__ = ["Link", "dial_echo1", "dial_echo2"]

# A peer that vanishes while the link is idle is noticed after 5 + 3 * 5 seconds. While the link is
# busy, the engine itself checks for that: see worker/link.hpp.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))

MAX_LEAVES = 4096  # most arrays of an original server; a peer that says more is something else
MAX_NDIM = 32


@dataclass
class Link:
    """A connected socket after its handshake.

    Attributes:
        socket: its blocking mode does not matter any more; the engine takes it over.
        rest: bytes that were read beyond the handshake.
        incarnation: identifies the run of the learner, which changes with a restart; "" with the original protocol.
    """

    socket: socket.socket
    rest: bytes = b""
    incarnation: str = ""


def dial_echo2(
    address: Address,
    handshake: ClientHandshake,
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
    sock = _connect(address, send_buffer, seconds)
    try:
        dialling(sock)
        _send(sock, handshake.start(), end)
        while not handshake.done:
            data = _receive(sock, 1 << 16, end)
            if reply := handshake.receive(data):
                _send(sock, reply, end)
        return Link(sock, bytes(handshake.leftover), handshake.peer["server"])
    except BaseException:
        sock.close()
        raise


def dial_echo1(
    address: Address,
    spec: Spec,
    send_buffer: int,
    seconds: float,
    dialling: Callable[[socket.socket], None],
) -> Link:
    """Connect to a server of the original protocol, which describes its samples and listens.

    The description has sizes and shapes but neither dtypes nor keys. Raises SpecError, which names the
    leaf that differs, and ProtocolError if this is not such a server; otherwise the errors of `dial_echo2`.
    """
    end = time.monotonic() + seconds
    sock = _connect(address, send_buffer, seconds)
    try:
        dialling(sock)

        def read(count: int) -> tuple[int, ...]:
            return struct.unpack(f"<{count}I", _exactly(sock, 4 * count, end))

        head = _exactly(sock, 5, end)
        if head[:4] != b"ECHO":
            raise ProtocolError(f"{address} is not an Echo server: it began with {head!r}")
        if head[4] != 1:
            raise HandshakeRefused(
                f"{address} speaks Echo protocol {head[4]}, not the original one; connect without "
                "protocol='echo1'",
                "version",
            )
        (count,) = read(1)
        if count > MAX_LEAVES:
            raise ProtocolError(f"{address} describes samples of {count} arrays")
        theirs = []
        for _ in range(count):
            itemsize, ndim = read(2)
            if ndim > MAX_NDIM:
                raise ProtocolError(f"{address} describes an array of {ndim} dimensions")
            theirs.append((itemsize, read(ndim)))
        _compare(spec, theirs, address)
        return Link(sock)
    except BaseException:
        sock.close()
        raise


def _compare(spec: Spec, theirs: list[tuple[int, tuple[int, ...]]], address: Address) -> None:
    if len(theirs) != len(spec.leaves):
        raise SpecError(
            f"{address} takes samples of {len(theirs)} arrays, this worker's example has "
            f"{len(spec.leaves)}"
        )
    for leaf, (itemsize, shape) in zip(spec.leaves, theirs):
        if shape != tuple(leaf.shape) or itemsize != leaf.dtype.itemsize:
            raise SpecError(
                f"leaf {leaf.path!r}: {address} takes shape {shape} of {itemsize}-byte items, this "
                f"worker's example has {tuple(leaf.shape)} of {leaf.dtype.itemsize}-byte items "
                f"({leaf.dtype})"
            )


def _connect(address: Address, send_buffer: int, seconds: float) -> socket.socket:
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
        raise ConnectionClosedError("the learner hung up during the handshake, as one with TLS does (tcps://)")
    return data


def _exactly(sock: socket.socket, count: int, end: float) -> bytes:
    data = b""
    while len(data) < count:
        data += _receive(sock, count - len(data), end)
    return data

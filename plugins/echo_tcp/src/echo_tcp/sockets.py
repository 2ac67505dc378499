"""Listening sockets: the addresses of a host name, and the socket options of their connections."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import weakref
from collections.abc import Sequence
from typing import Any

from echo_net.network.listening import cannot_listen

__all__ = ["free", "left_at_fork", "listen_on", "name_of", "unpaced"]

BACKLOG = 1024
# If a worker's machine dies without a message, that is noticed after 5 + 3 x 5 seconds of silence, or
# after 20 if bytes were in flight to it. Connections inherit these options from the listener.
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
)
# Weights that lie unsent in the kernel delay the acknowledgements behind them.
UNSENT_BYTES = 512 << 10


def listen_on(host: str, port: int, receive_buffer: int, backlog: int = BACKLOG) -> tuple[list[socket.socket], int]:
    """Non-blocking listening sockets for every address of `host`, all on the same port.

    Args:
        host: a name or an IP literal; "::" takes IPv4 as well.
        port: 0 picks a free one.
        receive_buffer: bytes that the kernel keeps for each connection; 0 leaves the size to the kernel.
        backlog: connections that may wait to be accepted.

    Returns:
        the sockets and the port.

    Raises:
        OSError: the host is unknown, or the address cannot be taken; the message names it and
            says how to choose another.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise cannot_listen(host, port, error) from error
    places = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for attempt in range(16):
        try:
            return _listen_on_all(places, port, receive_buffer, backlog)
        except OSError as error:
            # With port 0 the first address picks the port, which may be in use at another address.
            if port == 0 and error.errno == errno.EADDRINUSE and attempt < 15:
                continue
            raise cannot_listen(host, port, error) from error
    raise AssertionError("unreachable")


def left_at_fork(sock: socket.socket) -> None:
    """Make forked children close their copy of `sock`. Sockets that native code has taken over are closed there by native code.

    A connection or port is freed with its last copy. Children that outlive a killed process would keep all its connections and ports.
    """
    _ours.add(sock)


_ours: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_all() -> None:
    """Runs in the child. It takes no lock and touches no selector (the epoll belongs to the parent), and close() sends nothing to the other end."""
    for sock in list(_ours):
        sock.close()
    _ours.clear()


os.register_at_fork(after_in_child=_close_all)


def free(sockets: list[socket.socket]) -> None:
    """Close listening sockets so that their address can be taken again, even if a child forked by other means still holds copies of them.

    If such a copy went on listening, the port would take clients that never get an answer.
    """
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()


def unpaced(sock: socket.socket) -> None:
    """Use Reno for a connection within one machine. There is no congestion there, but a machine whose default is BBR paces the connection all the
    same, with a timer for every segment and a third of the throughput. Reno has no timers and is always available."""
    with contextlib.suppress(OSError):
        if sock.getsockname()[0] == sock.getpeername()[0]:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def name_of(address: Any) -> str:
    """A socket address for people: `127.0.0.1:5555`, `[::1]:5555`."""
    host, port = address[:2]
    host = host.removeprefix("::ffff:")  # an IPv4 client of a socket that takes IPv4 and IPv6
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen_on_all(
    places: Sequence[tuple[int, Any]], port: int, receive_buffer: int, backlog: int
) -> tuple[list[socket.socket], int]:
    taken: list[socket.socket] = []
    refused: OSError | None = None
    try:
        for family, address in places:
            try:
                taken.append(_listen(family, (address[0], port, *address[2:]), receive_buffer, backlog))
            except OSError as error:
                # "localhost" may name ::1 on a machine without IPv6; one address is enough.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                refused = error
                continue
            port = taken[-1].getsockname()[1]
        if not taken:
            raise refused or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    except BaseException:
        for sock in taken:
            sock.close()
        raise
    return taken, port


def _listen(family: int, address: Any, receive_buffer: int, backlog: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    left_at_fork(sock)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for level, option, value in KEEPALIVE:
            sock.setsockopt(level, option, value)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        if receive_buffer:
            # Set before listen(), because the window scale of a connection is fixed when it is made.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock

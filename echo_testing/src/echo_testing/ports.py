"""Holds ports of this machine, so that no other program gets one between two listeners of a test."""

from __future__ import annotations

import socket

__all__ = ["free_port", "hold"]

_held: list[socket.socket] = []


def free_port(host: str = "127.0.0.1") -> int:
    """A port of this machine's address `host` at which nobody listens, held until this process ends."""
    _held.append(hold(host, 0))
    return int(_held[-1].getsockname()[1])


def hold(host: str, port: int) -> socket.socket:
    """A socket that is bound to a port, 0 for any free one, but does not listen.

    While it is open, the kernel gives the port to no socket that asks for any port. A listener that asks for exactly this port gets it if it
    sets SO_REUSEADDR, as a listener must that wants to take its address again at once. Raises OSError if the port is taken.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    held = socket.socket(family, kind, protocol)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(place)
    except OSError:
        held.close()
        raise
    return held

"""Ports of this machine at which nobody listens."""

from __future__ import annotations

import socket

__all__ = ["free_port"]


def free_port() -> int:
    """One that was free just now, of 127.0.0.1: another process may take it first."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])

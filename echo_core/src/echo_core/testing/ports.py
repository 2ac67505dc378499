"""Finds ports of this machine at which no process listens."""

from __future__ import annotations

import random
import socket
from pathlib import Path

__all__ = ["free_port"]

LOWEST = 10_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port of 127.0.0.1 that was free just now.

    It lies below the range from which the kernel chooses ports for sockets that ask for any port, or connect. Another process therefore
    gets it only by asking for exactly this port.
    """
    end = int(EPHEMERAL.read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(LOWEST, end) if end > LOWEST + 1000 else 0
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue  # already in use
            return int(sock.getsockname()[1])

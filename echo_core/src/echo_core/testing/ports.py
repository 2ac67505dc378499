"""Ports of this machine at which nobody listens."""

from __future__ import annotations

import random
import socket
from pathlib import Path

__all__ = ["free_port"]

LOWEST = 10_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """One that was free just now, of 127.0.0.1.

    It lies below those that the kernel gives to whoever asks for any port, or connects; so another process takes it only if it wants this one.
    """
    end = int(EPHEMERAL.read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(LOWEST, end) if end > LOWEST + 1000 else 0
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue  # taken
            return int(sock.getsockname()[1])

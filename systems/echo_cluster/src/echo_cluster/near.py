"""Which of a shard's addresses a process dials: shared memory if the shard runs on the same host, else the first over a network."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

from echo_core import Address

__all__ = ["address_from_here", "host_id", "is_here"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NAMESPACES = ("ipc", "mnt", "pid")  # processes share memory and see each other only if they share these


def host_id() -> str:
    """32 hex digits that are equal for processes which can reach each other by shared memory: from the boot and the namespaces of this process."""
    try:
        parts = [BOOT_ID.read_text().strip(), *(os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES)]
    except OSError:  # such a system has no namespaces, and its name has to do
        parts = [socket.gethostname()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def is_here(addresses: tuple[Address, ...], host: str) -> bool:
    """Whether a shard runs on this host. Without a host id (`""`), an address says so that only this host can reach."""
    if host:
        return host == host_id()
    return any(address.host and address.is_loopback for address in addresses)


def address_from_here(addresses: tuple[Address, ...], host: str) -> Address:
    """The address to dial: one without a host, such as `shm://`, if the shard runs here, else the first with a host."""
    here = is_here(addresses, host)
    local = [address for address in addresses if not address.host]
    remote = [address for address in addresses if address.host]
    if local and (here or not remote):
        return local[0]
    return remote[0]

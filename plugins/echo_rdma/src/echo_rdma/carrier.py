"""Whether the network interface that has an address has a link: a cable, and a switch or another machine at its other end."""

from __future__ import annotations

import fcntl
import socket
import struct

__all__ = ["interface_without_carrier"]

ADDRESS_OF, FLAGS_OF = 0x8915, 0x8913  # SIOCGIFADDR and SIOCGIFFLAGS of linux/sockios.h
RUNNING = 0x40  # IFF_RUNNING: the interface is up and has a carrier


def interface_without_carrier(number: str) -> str:
    """The name of the interface whose main IPv4 address is `number` and that has no carrier; "" if there is none, or if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("16s24x", name.encode())
            try:
                address = fcntl.ioctl(any_socket, ADDRESS_OF, request)[20:24]
                flags = struct.unpack_from("H", fcntl.ioctl(any_socket, FLAGS_OF, request), 16)[0]
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(address) == number:
                return "" if flags & RUNNING else name
    return ""

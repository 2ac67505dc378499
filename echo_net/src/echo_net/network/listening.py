"""Listening sockets, for every network transport: why an address cannot be had, in words and with the way out, and those that a library keeps to itself."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress

from echo_core.base.errors import ListenError

__all__ = ["cannot_listen", "found_by_trying", "listening_sockets"]


def cannot_listen(host: str, port: int, error: OSError) -> ListenError:
    """`error` of taking the address, explained."""
    place, number = f"[{host}]:{port}" if ":" in host else f"{host}:{port}", error.errno
    if isinstance(error, socket.gaierror):
        number = errno.EADDRNOTAVAIL
        why = f'{error.strerror}; give host an address of this machine, such as "127.0.0.1", or "0.0.0.0" for all of them'
    elif error.errno == errno.EADDRINUSE:
        why = f"the port is in use; choose another with port=..., or port=0 for any free one (who has it: ss -ltnp 'sport = :{port}')"
    elif error.errno == errno.EACCES:
        why = "this user may not take ports below 1024; choose another with port=..., or port=0 for any free one"
    elif error.errno == errno.EADDRNOTAVAIL:
        why = 'no interface of this machine has that address; give host one that it has, such as "127.0.0.1", or "0.0.0.0" for all of them'
    else:
        why = error.strerror or str(error)
    return ListenError(number, f"cannot listen on {place}: {why}")


def found_by_trying(host: str, port: int, said: object) -> ListenError:
    """The same for libraries that do not tell: it is tried here. `said` is what they said, for when nothing is found."""
    try:
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(place)
                sock.listen(1)  # two that reuse an address may be bound, only one listens
    except OSError as error:
        return cannot_listen(host, port, error)
    return cannot_listen(host, port, OSError(errno.EIO, str(said)))


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """This process's sockets that listen there and do not block, for libraries that do not hand theirs out. They are duplicates, and the caller's to close.

    None are found where /proc is missing, or descriptors ran out.
    """
    hosts = {"::", "0.0.0.0"}
    with suppress(OSError):
        hosts |= {str(place[0]) for _, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)}
    found: dict[int, socket.socket] = {}  # by inode: a duplicate made here may have a number that was in the list
    with suppress(OSError):
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # it may be closed by now
                status = os.fstat(number)
                # To look at one that blocks may change it for good (socket.setdefaulttimeout); those of a library that polls do not.
                if stat.S_ISSOCK(status.st_mode) and not os.get_blocking(number) and status.st_ino not in found:
                    sock = socket.socket(fileno=number)
                    try:
                        if _listens(sock, hosts, port):
                            found[status.st_ino] = socket.socket(fileno=os.dup(number))  # sock.dup() would have it block, the library's too
                    finally:
                        sock.detach()  # it is not ours
    return list(found.values())


def _listens(sock: socket.socket, hosts: set[str], port: int) -> bool:
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    host, number = sock.getsockname()[:2]
    return number == port and host.removeprefix("::ffff:") in hosts  # gRPC's take IPv4 in sockets of IPv6

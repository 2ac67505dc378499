"""Why an address cannot be listened on, in words and with the way out; the same for every network transport."""

from __future__ import annotations

import errno
import socket

__all__ = ["cannot_listen", "found_by_trying"]


def cannot_listen(host: str, port: int, error: OSError) -> OSError:
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
    return OSError(number, f"cannot listen on {place}: {why}")


def found_by_trying(host: str, port: int, said: object) -> OSError:
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

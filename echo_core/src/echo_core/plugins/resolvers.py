"""The resolvers that Echo brings: `file://`, `dns://` and `static://`. Each gives the address to dial next, or None if the server is not up yet."""

from __future__ import annotations

import itertools
import os
import random
import socket
import stat
from collections.abc import Callable, Iterable

from ..base.address import Address, is_ip
from ..base.errors import AddressError, PluginError
from ..base.installing import how_to_install

__all__ = ["BUILT_IN", "dns", "file", "static", "static_list"]

DNS_SECONDS = 5.0  # for one query
MAX_FILE_BYTES = 1 << 20


def static_list(addresses: Iterable[Address | str]) -> Callable[[Address], Address]:
    """For `Client(resolve=...)`: these addresses in turn, whatever the client's own is. Raises AddressError."""
    listed = [Address.parse(address) for address in addresses]
    if not listed:
        raise AddressError("a list of addresses to resolve to must not be empty")
    turn = itertools.cycle(listed)
    return lambda address: next(turn)


def static(address: Address) -> Address:
    """`static://any?to=tcp://a:5555,tcp://b:5555`: one of the addresses, at random."""
    listed = [text for text in address.options.get("to", "").split(",") if text]
    if not listed:
        raise AddressError(f'"{address}" names no addresses; write static://any?to=tcp://a:5555,tcp://b:5555')
    return Address.parse(random.choice(listed))


def file(address: Address) -> Address | None:
    """`file:///run/echo/address`: an address that a file contains, as `echoctl serve --address-file` writes it; of several lines, one at random.
    A file that is missing or empty means that the server is not up yet. No error shows what a file contains: the address may name the wrong one."""
    try:
        opened = os.open(address.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe would wait for somebody to write
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise AddressError(f'"{address}": {address.path} is not a plain file; name a file that contains an address')
        data = os.read(opened, MAX_FILE_BYTES + 1)
    finally:
        os.close(opened)
    if len(data) > MAX_FILE_BYTES:
        raise AddressError(f'"{address}": {address.path} has more than {MAX_FILE_BYTES} bytes; a file of addresses is smaller')
    lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip() and not line.startswith(b"#")]
    if not lines:
        return None
    number, line = random.choice(lines)
    try:
        return Address.parse(line.decode())
    except (AddressError, UnicodeDecodeError):
        raise AddressError(
            f'"{address}": line {number} of {address.path} is not an address; name a file with one address a line, as echoctl serve --address-file writes it'
        ) from None


def dns(address: Address) -> Address | None:
    """`dns://name:5555?transport=tcp`: one of the name's addresses (A and AAAA records), at random. `dns://_echo._tcp.example.org?transport=tcp` takes host and
    port from SRV records, by their priorities and weights; it needs the extra `dns`. Options beside `transport` are those of the transport."""
    options = dict(address.options)
    scheme = options.pop("transport", "")
    if not scheme:
        raise AddressError(f'"{address}" names no transport; end it with ?transport=NAME')
    if address.port is None:
        host, port = _service(address.path)
        return Address(scheme, host, port, options=options) if host else None
    if scheme.endswith("s") or is_ip(address.host):  # with TLS (by its name) the certificate is checked against the name, so that is dialled
        return Address(scheme, address.host, address.port, options=options)
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, socket.EAI_AGAIN, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return None
        raise
    hosts = sorted({str(entry[4][0]) for entry in found})
    return Address(scheme, random.choice(hosts), address.port, options=options)


def _service(name: str) -> tuple[str, int]:
    """Host and port of an SRV record; it has no host if the text names none."""
    try:
        import dns.exception
        import dns.resolver
    except ModuleNotFoundError as error:
        raise PluginError(f"SRV records need dnspython; {how_to_install('echo-core[dns]')}, or give the port: dns://{name}:5555?transport=...") from error
    try:
        records = list(dns.resolver.resolve(name, "SRV", lifetime=DNS_SECONDS))
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer, dns.resolver.NoNameservers, dns.exception.Timeout):
        return "", 0
    first = min(record.priority for record in records)
    best = [record for record in records if record.priority == first]
    chosen = random.choices(best, [record.weight or 0.1 for record in best])[0]
    host = str(chosen.target).rstrip(".")
    return host, int(chosen.port)


NOT_UP = ((file, "its file is missing or empty"), (dns, "no name server knows the name"))  # what None means
BUILT_IN: dict[str, Callable[[Address], Address | None]] = {"file": file, "dns": dns, "static": static}

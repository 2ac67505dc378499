"""Addresses: where a learner listens and a worker connects, written as one line of text.

`tcp://learner:5555?window=64`, `tcp://[::1]:5555`, `shm://name`, `unix:///run/echo.sock`.
The scheme is the name of a transport; that transport interprets everything else.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from .errors import AddressError, ConfigError

__all__ = ["Address", "is_ip", "is_loopback_host", "refuse_host_and_port"]

_SCHEME = re.compile(r"[a-z][a-z0-9+._-]*")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_.])?")
_HOST_AND_PORT = re.compile(r"(\[[^\]/]*\]|[A-Za-z0-9_.-]+):\d+([/?].*)?")
# A path keeps no plain colon: an unquoted one would be read as the start of a port.
_PATH_SAFE = "/!$'()*+,;=@~"
_OPTION_SAFE = "/:@,[]"
_EXAMPLES = 'addresses look like "tcp://127.0.0.1:5555" or "shm://name"'


@dataclass(frozen=True)
class Address:
    """One address, immutable; equal addresses print the same and hash the same.

    Either `host` and `port` are both given (the address is on a network), or both are missing and
    `path` alone names a place on this machine. A host without a port is always a mistake, so this
    class refuses it, and the transports need not.

    Attributes:
        scheme: lower case; the name of a transport.
        host: name or IP literal, without brackets; `""` when the address has no host.
        port: 0 to 65535 (0 asks the listener to pick one), or None when there is no host.
        path: with a host, `""` or text that starts with `/`; without one, the name of the place.
        options: what follows the `?`, percent-decoded, in order. Treat it as read-only.
    """

    scheme: str
    host: str = ""
    port: int | None = None
    path: str = ""
    options: dict[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        host = _lower_host(self.host)
        object.__setattr__(self, "scheme", self.scheme.lower())
        object.__setattr__(self, "host", host)
        object.__setattr__(self, "options", dict(self.options))
        if not _SCHEME.fullmatch(self.scheme):
            raise AddressError(f"{self.scheme!r} is not a scheme; {_EXAMPLES}")
        if self.port is None:
            if host:
                raise AddressError(
                    f"the {self.scheme} address of host {host!r} has no port; "
                    f'write "{self.scheme}://{_bracketed(host)}:5555"'
                )
            _refuse_host_as_path(self.scheme, self.path)
        else:
            if isinstance(self.port, bool) or not isinstance(self.port, int):
                raise AddressError(f"port {self.port!r} is not a whole number from 0 to 65535")
            if not 0 <= self.port <= 65535:
                raise AddressError(f"port {self.port} is out of range; ports go from 0 to 65535")
            _check_host(self.scheme, host, self.port)
            if self.path and not self.path.startswith("/"):
                raise AddressError(f"path {self.path!r} after a port must start with '/'")
        for text in (self.path, *self.options, *self.options.values()):
            _check_encodable(text)
        if "" in self.options:
            raise AddressError(f"an option of a {self.scheme} address has no name; use name=value")

    @classmethod
    def parse(cls, text: str | Address) -> Address:
        """Read an address from text; an `Address` is returned as it is.

        `str()` is the inverse: `Address.parse(str(address)) == address` for every address.

        Raises:
            AddressError: the text is not an address; the message shows what was probably meant.
        """
        if isinstance(text, Address):
            return text
        if not isinstance(text, str):
            raise AddressError(f"an address must be text, not {type(text).__name__}; {_EXAMPLES}")
        try:
            return cls._read(text.strip())
        except AddressError as error:
            raise AddressError(_without_secrets(str(error))) from None

    @classmethod
    def _read(cls, text: str) -> Address:
        scheme, separator, rest = text.partition("://")
        if not separator or not _SCHEME.fullmatch(scheme.lower()):
            raise AddressError(_no_scheme(text))
        rest, _, query = rest.partition("?")
        authority, slash, path = rest.partition("/")
        options = _parse_options(text, query)
        if not authority or not (authority.startswith("[") or ":" in authority):
            if not rest:
                raise AddressError(f'"{text}" has nothing after the scheme; {_EXAMPLES}')
            return cls(scheme, path=_unquote(rest), options=options)
        host, port = _split_authority(text, scheme, authority)
        return cls(scheme, host, port, slash + _unquote(path), options)

    def __str__(self) -> str:
        place = "" if self.port is None else f"{_bracketed(self.host)}:{self.port}"
        text = f"{self.scheme}://{place}{quote(self.path, safe=_PATH_SAFE)}"
        query = "&".join(
            f"{quote(name, safe=_OPTION_SAFE)}={quote(value, safe=_OPTION_SAFE)}"
            for name, value in self.options.items()
        )
        return f"{text}?{query}" if query else text

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the address: 127/8, ::1, localhost, or no host."""
        return self.port is None or is_loopback_host(self.host)

    @property
    def endpoint(self) -> tuple[str, int]:
        """`(host, port)`, for transports that need a network address.

        Raises:
            AddressError: the address has no port (`tcp://learner`); the message shows how to add one.
        """
        if self.port is None:
            name = self.path.strip("/") or "127.0.0.1"
            raise AddressError(
                f'"{self}" has no port; did you mean "{self.scheme}://{quote(name)}:5555"?'
            )
        return self.host, self.port


def is_ip(host: str) -> bool:
    """Whether this is the literal of an IPv4 or IPv6 address, without brackets."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback_host(host: str) -> bool:
    """True for 127/8, ::1 (and 127/8 mapped into IPv6) and localhost.

    It is False for anything else. That includes `""`, which sockets bind to every interface. Names are not resolved.
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback


def refuse_host_and_port(who: str, argument: str, address: object, host: object, port: object) -> None:
    """Refuse `host=` and `port=` where an address is meant, and say how to write it. `address` is what was given as address, if anything was.

    Raises:
        ConfigError: one of the two is given.
    """
    given = [name for name, value in (("host", host), ("port", port)) if value is not None]
    if not given:
        return
    start, known_host, known_port = "tcp://", "127.0.0.1", 5555
    with contextlib.suppress(AddressError):
        known = Address.parse(address)  # type: ignore[arg-type]
        if known.port is not None:
            start, known_host, known_port = f"{known.scheme}://", known.host, known.port
    place = f"{_bracketed(str(known_host if host is None else host))}:{known_port if port is None else port}"
    why = "it is a part" if len(given) == 1 else "they are parts"
    raise ConfigError(f'{who} takes no {" and no ".join(given)}, because {why} of the address; write {argument}"{start}{place}"')


def _without_secrets(text: str) -> str:
    """Remove tokens and passwords from the address that an error's text shows. An address should hold neither, but people write them."""
    return re.sub(r"(token=)[^&\s\"']+|[^/@\s\"']+:[^/@\s\"']*(@)", r"\1...\2", text)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _lower_host(host: str) -> str:
    # The zone of a link-local address names a network interface, whose case matters.
    name, percent, zone = host.partition("%")
    return f"{name.lower()}{percent}{zone}"


def _check_host(scheme: str, host: str, port: int) -> None:
    if not host:
        raise AddressError(
            f'"{scheme}://:{port}" has no host; write "{scheme}://127.0.0.1:{port}" for this '
            f'machine only, or "{scheme}://0.0.0.0:{port}" for every interface'
        )
    if host == "*":
        raise AddressError(
            f'"*" is not a host; write "{scheme}://0.0.0.0:{port}" for every interface'
        )
    if not (is_ip(host) or _HOST.fullmatch(host)):
        raise AddressError(f"{host!r} is not a host name or IP address; {_EXAMPLES}")
    if any(character in host for character in "/?#]"):  # in the zone of an IPv6 literal
        raise AddressError(f"{host!r} cannot stand in an address: its zone holds one of / ? # ]")


def _refuse_host_as_path(scheme: str, path: str) -> None:
    if not path:
        raise AddressError(f"the {scheme} address names neither a host nor a path; {_EXAMPLES}")
    if is_ip(path) or path.lower() == "localhost":
        raise AddressError(
            f'"{scheme}://{path}" has no port; write "{scheme}://{_bracketed(path)}:5555"'
        )


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise AddressError(f"{text!r} cannot be written as UTF-8") from None


def _unquote(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise AddressError(f"{text!r} has percent escapes that are not UTF-8") from None


def _split_authority(text: str, scheme: str, authority: str) -> tuple[str, int]:
    if authority.startswith("["):
        host, bracket, port = authority[1:].partition("]")
        if not bracket:
            raise AddressError(f'"{text}" opens a bracket and never closes it; write "[::1]:5555"')
        if not port:
            raise AddressError(f'"{text}" has no port; write "{scheme}://[{host}]:5555"')
        if not port.startswith(":"):
            raise AddressError(f'"{text}": "]" must be followed by ":" and a port, not by {port!r}')
        port = port[1:]
        if not (is_ip(host) and ":" in host):
            raise AddressError(f'"{text}": brackets must hold an IPv6 address, and {host!r} is not one')
    else:
        host, _, port = authority.rpartition(":")
        if "@" in authority:
            raise AddressError(
                f'"{text}": an address must not hold a user or password; give a token in ECHO_TOKEN'
            )
        if ":" in host:
            guess = ", as in [::1]:5555"
            if is_ip(host) and port.isdigit():
                guess = f'; did you mean "{scheme}://[{host}]:{port}"?'
            elif is_ip(authority):
                guess = f'; did you mean "{scheme}://[{authority}]:5555"?'
            raise AddressError(f'"{text}": an IPv6 address must stand in brackets{guess}')
    if not (port.isascii() and port.isdigit()):
        shown = repr(port) if port else "nothing"
        raise AddressError(f'"{text}": a port must be a number from 0 to 65535, not {shown}')
    return host, int(port)


def _parse_options(text: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in query.split("&") if query else ():
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise AddressError(f'"{text}": option {item!r} must be written name=value')
        name, value = _unquote(name), _unquote(value)
        if name in options:
            raise AddressError(f'"{text}" gives option {name!r} twice; keep one')
        options[name] = value
    return options


def _no_scheme(text: str) -> str:
    if not text:
        return f"the address is empty; {_EXAMPLES}"
    one_slash = re.fullmatch(r"([A-Za-z][A-Za-z0-9+._-]*):/?([^/\d].*|\d+\..*|\[.*)", text)
    bare = text.removeprefix("//").removeprefix("://")
    if _HOST_AND_PORT.fullmatch(bare):
        guess = f"tcp://{bare}"
    elif one_slash and _HOST_AND_PORT.fullmatch(one_slash[2]):
        guess = f"{one_slash[1].lower()}://{one_slash[2]}"
    elif is_ip(bare) or _HOST.fullmatch(bare.lower()):
        guess = f"tcp://{_bracketed(bare)}:5555"
    else:
        return f'"{text}" has no scheme; {_EXAMPLES}'
    return f'"{text}" has no scheme; did you mean "{guess}"?'

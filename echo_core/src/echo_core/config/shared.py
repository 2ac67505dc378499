"""The section `[shared]`: one address for both ends of a file, and the check that the two ends of a file fit together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..base.address import Address, is_loopback_host
from ..base.errors import AddressError, ConfigError
from ..plugins.discovery import PluginHost
from .layers import Layer
from .sections import PluginChoice

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["disagreement", "with_shared"]

_SERVER, _CLIENT = ("server", "transport"), ("client", "address")


def with_shared(layer: Layer) -> Layer:
    """`layer`, in which `shared.address` has become the server's transport and the client's address, where these are not given.

    A `[server.transport]` without `type` has options for it, and is kept.

    Raises:
        ConfigError: the address cannot be read or has options, or `listen_host` has no address.
    """
    address, origin = _address(layer)
    if address is None:
        return layer
    made = Layer()
    made.merge(layer)
    own = {path for path in layer.values if path[:2] == _SERVER}
    if _SERVER not in own and not any(path[2] == "type" or path[2].isdigit() for path in own):
        listens: Any = layer.values.get(("shared", "listen_host"))
        host = str(listens) if listens is not None and address.port is not None else address.host
        place = {"type": address.scheme, "host": host, "port": address.port, "path": address.path}
        for key, value in place.items():
            if value not in ("", None) and (*_SERVER, key) not in own:
                made.put((*_SERVER, key), value, origin)
    if _CLIENT not in layer.values:
        made.put(_CLIENT, str(address), origin)
    return made


def _address(layer: Layer) -> tuple[Address | None, str]:
    given = layer.values.get(("shared", "address"))
    origin = layer.origins.get(("shared", "address"), "")
    if given is None:
        if layer.values.get(("shared", "listen_host")) is not None:
            raise ConfigError(f'{layer.origins[("shared", "listen_host")]}: shared.listen_host: it needs a shared.address, such as "tcp://learner:5555"')
        return None, ""
    try:
        address = Address.parse(given)
    except AddressError as error:
        raise ConfigError(f"{origin}: shared.address: {error}") from error
    if address.options:
        raise ConfigError(
            f"{origin}: shared.address: options behind the '?' ({', '.join(address.options)}) belong to one end;"
            " write those of the learner under [server.transport], and those of workers under [client]"
        )
    return address, origin


def disagreement(transports: Iterable[PluginChoice], address: Address, fallbacks: Mapping[str, Any], plugins: PluginHost) -> str | None:
    """Why a client at `address` would reach none of the server's transports, in words; None if it may reach one.

    Raises the errors of `PluginChoice.create`.
    """
    if plugins.resolves(address.scheme):
        return None  # nobody knows before the client connects
    reasons = []
    for choice in transports:
        reason = _mismatch(choice, address, fallbacks, plugins)
        if reason is None:
            return None
        reasons.append(f"{choice.where} {reason}")
    return "; ".join(reasons) or None


def _mismatch(choice: PluginChoice, address: Address, fallbacks: Mapping[str, Any], plugins: PluginHost) -> str | None:
    if choice.load() is not plugins.transport_class(address.scheme):  # one class may have several names
        return f"is {choice.type!r}, and the client's address begins with {address.scheme}://"
    options = choice.create(**fallbacks).options
    if address.port is None:
        path = getattr(options, "path", None)
        if path is None or str(path) == address.path:
            return None
        return f"has the path {str(path)!r}, and the client's address has {address.path!r}" if str(path) else "has a random path (give it a path)"
    port, listens = getattr(options, "port", address.port), getattr(options, "host", address.host)
    if port == 0:
        return f"takes any free port (port = 0), and the client connects to port {address.port}"
    if port != address.port:
        return f"listens on port {port}, and the client connects to port {address.port}"
    if is_loopback_host(listens) and not is_loopback_host(address.host):
        return f"listens for this machine only (host = {listens!r}), and the client connects to {address.host!r}"
    return None

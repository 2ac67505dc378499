"""Where a client's server is: `Client(resolve=...)`, and addresses whose scheme names a resolver instead of a transport."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..base.address import Address
from ..base.errors import ConfigError, ConnectionClosedError, EchoError, EchoTimeoutError, PluginNotFound
from . import discovery

if TYPE_CHECKING:
    from ..wire.transport import Transport

__all__ = ["Reach", "Resolver", "reach"]

Resolver = Callable[[Address], "Address | str | None"]

PAUSES = (0.05, 1.0)  # seconds between two questions while the server is not up yet: at first, and at most


class Reach(NamedTuple):
    """How to connect.

    Attributes:
        transport: the class to connect with.
        address: where the server is now.
        options: further options of the connection: `resolve`, if it is asked before every dial.
    """

    transport: type[Transport]
    address: Address
    options: dict[str, object]


def reach(address: Address, resolve: Resolver | None, timeout: float) -> Reach:
    """Find the server of `address`, for at most `timeout` seconds.

    Raises:
        EchoTimeoutError: it is not up yet. PluginNotFound: no transport and no resolver has this scheme. ConfigError: `resolve` cannot be called.
    """
    if resolve is not None and not callable(resolve):
        raise ConfigError(f"resolve must be callable as resolve(address), not {resolve!r}")
    if resolve is None:
        try:
            return Reach(discovery.transport_class(address.scheme), address, {})
        except PluginNotFound:
            if not discovery.resolves(address.scheme):
                raise
            found_resolver: Resolver = discovery.resolver(address.scheme)
            resolve = found_resolver
    began, pause = time.monotonic(), PAUSES[0]
    while True:
        try:
            found = _ask(resolve, address)
            break
        except (ConnectionError, TimeoutError) as error:
            left = began + timeout - time.monotonic()
            if left <= 0:
                raise EchoTimeoutError(f"{address} was not found within {timeout:g} s: {error}") from error
            time.sleep(min(pause, left))
            pause = min(2 * pause, PAUSES[1])
    return Reach(discovery.transport_class(found.scheme), found, {"resolve": _Again(resolve, address, found.scheme)})


def _ask(resolve: Resolver, address: Address) -> Address:
    """Raises ConnectionClosedError if the server is not up yet, or the resolver fails. Mistakes in the address are raised as they are."""
    try:
        found = resolve(address)
        if found is None:
            raise ConnectionClosedError("it is not up yet (its resolver returned None)")
        parsed = Address.parse(found)
    except EchoError:
        raise
    except Exception as error:
        raise ConnectionClosedError(f"its resolver failed: {type(error).__name__}: {error}") from error
    if parsed.scheme != address.scheme:
        return parsed
    return replace(parsed, options=address.options | parsed.options)  # those of the transport


class _Again:
    """What transports call before each dial."""

    def __init__(self, resolve: Resolver, address: Address, scheme: str) -> None:
        self._resolve, self._address, self._scheme = resolve, address, scheme

    def __call__(self) -> Address:
        found = _ask(self._resolve, self._address)
        if found.scheme != self._scheme:
            raise ConnectionClosedError(f"{self._address} is now {found}, and this client connects over {self._scheme}; make a new one")
        return found

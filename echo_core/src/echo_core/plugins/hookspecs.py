"""The hooks of Echo: everything a plugin may implement, one docstring each.

A plugin marks its functions with `hookimpl` and names its module in an entry point:

* group `echo.transports` or `echo.samplers`: the entry-point name is what users type in a
  configuration and as the scheme of an address. The module is imported only when that name is
  selected, so it should import nothing but the standard library and this module; the heavy
  imports belong to the module that `factory` names.
* group `echo`: observers. They are all loaded when a server or client starts and implement any
  of the lifecycle hooks below.

Hooks wire things up and report; none is ever called per sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    from ..wire.peer import Peer

__all__ = [
    "PLUGIN_API",
    "PROJECT",
    "Configuration",
    "SamplerInfo",
    "TransportInfo",
    "echo_configure",
    "echo_peer_connected",
    "echo_peer_lost",
    "echo_samplers",
    "echo_stats",
    "echo_transports",
    "hookimpl",
    "hookspec",
]

PROJECT = "echo"

PLUGIN_API = 1
"""Raised when a plugin written for the version before would no longer work."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class TransportInfo:
    """What a transport plugin says about one transport, without importing it.

    Attributes:
        name: what users type; the same as the entry-point name.
        factory: `"module:Class"` of the `Transport`, imported when the transport is selected.
        client: `"module:Class"` of a client class of its own (`TcpClient`), or None.
        api: the plugin API it was written for; the literal number, never `PLUGIN_API` itself,
            which would always agree.
        summary: one line for listings.
        schemes: the address schemes it answers to; `(name,)` unless given. Every scheme needs an
            entry point of that name too (they may name the same module), because a scheme is
            looked up among entry points and nothing is imported to guess it.
    """

    name: str
    factory: str
    client: str | None = None
    api: int = 1
    summary: str = ""
    schemes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "schemes", tuple(self.schemes) or (self.name,))


@dataclass(frozen=True)
class SamplerInfo:
    """What a sampler plugin says about one sampler, without importing it.

    Attributes:
        name: what users type; the same as the entry-point name.
        factory: `"module:Class"` of the `Sampler`, imported when the sampler is selected.
        api: the plugin API it was written for; the literal number.
        summary: one line for listings.
    """

    name: str
    factory: str
    api: int = 1
    summary: str = ""


class Configuration(Protocol):
    """What `echo_configure` is given: an `echo_core.config.config.Config`.

    Attributes:
        server, client, security, plugins: the sections, with an attribute for each key.
    """

    server: Any
    client: Any
    security: Any
    plugins: Any

    def origin(self, key: str) -> str:
        """Where the value of a dotted key came from: a file's path, "environment variable X", ...; "default" if nobody gave it."""

    def explain(self) -> list[tuple[str, Any, str]]:
        """Every key that has a value, as `(key, value, origin)`, defaults included."""


@hookspec
def echo_transports() -> Iterable[TransportInfo]:  # type: ignore[empty-body]
    """The transports of this plugin; group `echo.transports`.

    Called when one of them is selected, and for listings that ask for details.
    """


@hookspec
def echo_samplers() -> Iterable[SamplerInfo]:  # type: ignore[empty-body]
    """The samplers of this plugin; group `echo.samplers`.

    Called when one of them is selected, and for listings that ask for details.
    """


@hookspec
def echo_configure(config: Configuration) -> None:
    """A server or client is about to start with this configuration; nothing is open yet.

    Raising here stops the start: this is where a site enforces its rules.
    """


@hookspec
def echo_peer_connected(peer: Peer) -> None:
    """A client has finished its handshake: a worker, or an observer (`peer.role`). Exceptions are logged and change nothing."""


@hookspec
def echo_peer_lost(peer: Peer, reason: str) -> None:
    """A client's connection is gone; `reason` is text for people. Exceptions are logged."""


@hookspec
def echo_stats(stats: Mapping[str, float | int | str]) -> None:
    """The flat statistics of a server, once per interval. Exceptions are logged."""

"""The hooks of Echo: everything that a plugin may implement, with one docstring for each hook.

A plugin marks its functions with `hookimpl` and names its module in an entry point:

* group `echo.transports` or `echo.samplers`: the entry-point name is what users type in a
  configuration and as the scheme of an address. The module is imported only when that name is
  selected, so it should import only the standard library and this module; heavy imports belong
  into the module that `factory` names.
* group `echo`: observers. All of them are loaded when a server or client starts. They implement
  any of the lifecycle hooks below.

Hooks connect parts and report events; Echo never calls a hook per sample.
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
"""The version of the plugin API. It is raised when plugins written for the previous version would no longer work."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class TransportInfo:
    """A transport plugin's description of one transport, which does not import that transport.

    Attributes:
        name: the name that users type; the same as the entry-point name.
        factory: `"module:Class"` of the `Transport`, imported when the transport is selected.
        client: `"module:Class"` of the transport's own client class (`TcpClient`), or None.
        api: the plugin API for which it was written, as a literal number. `PLUGIN_API` itself would
            always agree and so check nothing.
        summary: one line for listings.
        schemes: the address schemes of this transport; `(name,)` unless given. Every scheme also needs
            an entry point of that name (several may name the same module), because a scheme is
            looked up among the entry points without importing anything.
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
    """A sampler plugin's description of one sampler, which does not import that sampler.

    Attributes:
        name: the name that users type; the same as the entry-point name.
        factory: `"module:Class"` of the `Sampler`, imported when the sampler is selected.
        api: the plugin API for which it was written, as a literal number.
        summary: one line for listings.
    """

    name: str
    factory: str
    api: int = 1
    summary: str = ""


class Configuration(Protocol):
    """The argument of `echo_configure`: an `echo_core.config.config.Config`.

    Attributes:
        server, client, security, plugins: the sections, with an attribute for each key.
    """

    server: Any
    client: Any
    security: Any
    plugins: Any

    def origin(self, key: str) -> str:
        """Where the value of a dotted key came from: a file's path, "environment variable X", ...; "default" if no source gave it."""

    def explain(self) -> list[tuple[str, Any, str]]:
        """Every key that has a value, as `(key, value, origin)`, defaults included."""


@hookspec
def echo_transports() -> Iterable[TransportInfo]:  # type: ignore[empty-body]
    """The transports of this plugin; group `echo.transports`.

    Echo calls it when one of them is selected, and for listings that show details.
    """


@hookspec
def echo_samplers() -> Iterable[SamplerInfo]:  # type: ignore[empty-body]
    """The samplers of this plugin; group `echo.samplers`.

    Echo calls it when one of them is selected, and for listings that show details.
    """


@hookspec
def echo_configure(config: Configuration) -> None:
    """A server or client is about to start with this configuration; nothing is open yet.

    An exception here stops the start, so a site can enforce its rules in this hook.
    """


@hookspec
def echo_peer_connected(peer: Peer) -> None:
    """A client, which is a worker or an observer (`peer.role`), has finished its handshake. Exceptions are logged and change nothing."""


@hookspec
def echo_peer_lost(peer: Peer, reason: str) -> None:
    """A client's connection is gone; `reason` is text for people. Exceptions are logged and change nothing."""


@hookspec
def echo_stats(stats: Mapping[str, float | int | str]) -> None:
    """The flat statistics of a server, reported once per interval. Exceptions are logged and change nothing."""

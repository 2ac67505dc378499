"""RDMA: `RdmaTransport` for a `Server` (`rdma://`, `ucx://`), `RdmaClient` for workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echo_core.base.address import Address
from echo_core.base.errors import ConfigError
from echo_core.client.client import Client
from echo_core.security.tokens import check_exposure
from echo_core.wire.transport import Finding
from echo_net.channel import ChannelTransport

from . import lanes, library
from .channel import RdmaAcceptor, RdmaChannel, check_family, dial
from .options import RdmaConnectOptions, RdmaListenOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from echo_core.spec.spec import Spec
    from echo_core.wire.sink import Sink
    from echo_core.wire.transport import Connection, Listener

__all__ = ["RdmaClient", "RdmaTransport", "UcxTransport"]


class RdmaTransport(ChannelTransport):
    """A learner's end on UCX.

    Args:
        **options: see `RdmaListenOptions`.

    Raises:
        ConfigError: an option is unknown or unusable; from `listen` and `connect`: UCX is missing, and the message says what to install.
    """

    scheme = "rdma"
    Options = RdmaListenOptions
    ConnectOptions = RdmaConnectOptions

    def listen(self, sink: Sink) -> Listener:
        from .listener import RdmaListener

        return RdmaListener.on(self.bind(), sink, self.options)

    def bind(self) -> RdmaAcceptor:
        options = self.options
        check_family(options.host)
        check_exposure(options.host, options.auth, options.allow_insecure)
        return RdmaAcceptor(options, self.scheme)

    @classmethod
    def connect(cls, address: Address, spec: Spec, **options: Any) -> Connection:
        from .connection import RdmaConnection

        check_family(address.endpoint[0])
        return RdmaConnection(cls.dial, address, spec, cls.connect_options(address, options))

    @classmethod
    def findings(cls) -> Iterable[Finding]:
        """The UCX in use, its settings, the network cards, whether enough memory may be locked, and the lanes of this process's connections,
        with the reason if they are not RDMA."""
        try:
            path, version = library.ucx()
        except ConfigError as error:
            yield Finding("warning", "UCX", str(error).removesuffix(library.ADVICE).rstrip(), library.ADVICE)
        else:
            yield Finding("ok", "UCX", f"{'.'.join(map(str, version))}, {path}")
            yield Finding("ok", "UCX lanes", lanes.told())
        yield Finding("ok", "UCX settings", library.settings_shown() or "no UCX_* variable is set")
        cards = library.cards()
        yield Finding("ok", "RDMA devices", ", ".join(cards) or "none: UCX takes shared memory or TCP here")
        advice = library.memory_lock_advice()
        if not advice:
            yield Finding("ok", "locked memory", "enough may be locked")
        else:  # without a card it does not matter
            found, _, fix = advice.partition("; ")
            yield Finding("warning" if cards else "ok", "locked memory", found, fix if cards else "")

    @classmethod
    def dial(cls, address: Address, options: Any, timeout: float) -> RdmaChannel:
        return dial(address, options, timeout)


class UcxTransport(RdmaTransport):
    """The same transport under its other name: `ucx://`."""

    scheme = "ucx"


class RdmaClient(Client):
    """A worker's connection over UCX.

    Args:
        host: the learner's host name or address.
        port: its port.
        example: a pytree like the server's: one sample.
        **options: the options of `echo_core.Client`.

    Raises: the errors of `echo_core.Client`.
    """

    def __init__(self, host: str, port: int, example: Any, **options: Any) -> None:
        super().__init__(Address("rdma", host, port), example, **options)

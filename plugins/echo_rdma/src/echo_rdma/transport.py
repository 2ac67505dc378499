"""RDMA: `RdmaTransport` for a `Server` (`rdma://`, `ucx://`), `RdmaClient` for workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from echo_core.base.address import Address
from echo_core.base.errors import ConfigError
from echo_core.base.transport_options import ConnectOptions, ListenOptions
from echo_core.client.client import Client
from echo_core.security.tokens import check_exposure
from echo_core.wire.channel import ChannelTransport
from echo_core.wire.transport import Finding

from . import lanes, library
from .channel import RdmaAcceptor, RdmaChannel, check_family, dial

if TYPE_CHECKING:
    from collections.abc import Iterable

    from echo_core.spec.spec import Spec
    from echo_core.wire.sink import Sink
    from echo_core.wire.transport import Connection, Listener

__all__ = ["RdmaClient", "RdmaConnectOptions", "RdmaListenOptions", "RdmaTransport", "UcxTransport"]


def check_times(options: RdmaListenOptions | RdmaConnectOptions) -> None:
    if not 0.05 <= options.heartbeat <= 3600:
        raise ValueError(f"heartbeat must be from 0.05 to 3600 seconds, not {options.heartbeat!r}")
    if not options.lease >= 2 * options.heartbeat:
        raise ValueError(f"lease must be at least twice the heartbeat of {options.heartbeat!r} s, not {options.lease!r}")
    if not 0 <= options.spin <= 1:
        raise ValueError(f"spin must be from 0 to 1 second, not {options.spin!r}")


@dataclass(frozen=True, kw_only=True)
class RdmaListenOptions(ListenOptions):
    """Options of `RdmaTransport`."""

    host: str = "127.0.0.1"  # an address or name of this machine's network card; "0.0.0.0" is every one
    port: int = 50051  # 0: any free one
    token: str | bytes | None = field(default=None, repr=False)  # None: the server's
    allow_insecure: bool = False  # listen beyond this machine without authentication
    require_rdma: bool = False  # refuse clients that would be reached by TCP or shared memory
    heartbeat: float = 1.0  # seconds between signs of life
    lease: float = 10.0  # seconds without any until a worker is given up
    spin: float = 20e-6  # seconds without work until the thread that serves sleeps
    busy_poll: bool = False  # it never sleeps: takes a core, saves some µs
    credit_bytes: int = 64 << 20  # of samples that one worker may be ahead of the store

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.credit_bytes < 1:
            raise ValueError(f"credit_bytes must be at least 1, not {self.credit_bytes}")
        if not self.host:
            raise ValueError('host is empty; write "0.0.0.0" for every interface')
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is a number from 0 to 65535, not {self.port}")
        check_times(self)


@dataclass(frozen=True, kw_only=True)
class RdmaConnectOptions(ConnectOptions):
    """What a worker's connection can be told."""

    window_bytes: int = 16 << 20
    require_rdma: bool = False  # refuse a learner that would be reached by TCP or shared memory
    heartbeat: float = 1.0  # seconds between signs of life
    lease: float = 10.0  # seconds without any until the learner is given up, and dialled again
    spin: float = 20e-6  # seconds without work until the thread that sends sleeps
    busy_poll: bool = False  # it never sleeps: takes a core, saves some µs

    def __post_init__(self) -> None:
        super().__post_init__()
        check_times(self)


class RdmaTransport(ChannelTransport):
    """A learner's end on UCX.

    Args:
        **options: see `RdmaListenOptions`.

    Raises:
        ConfigError: an option is unknown or unusable; from `listen` and `connect`: there is no UCX, and what to install.
    """

    scheme = "rdma"
    Options = RdmaListenOptions
    ConnectOptions = RdmaConnectOptions

    def listen(self, sink: Sink) -> Listener:
        from .listener import RdmaListener

        return RdmaListener(self.bind(), sink, self.options)

    def bind(self) -> RdmaAcceptor:
        options = self.options
        check_family(options.host)
        check_exposure(options.host, options.auth, options.allow_insecure)
        return RdmaAcceptor(options, self.scheme)

    @classmethod
    def connect(cls, address: Address, spec: Spec, **options: Any) -> Connection:
        from .connection import RdmaConnection

        check_family(address.endpoint[0])
        return RdmaConnection(address, spec, cls.connect_options(address, options))

    @classmethod
    def findings(cls) -> Iterable[Finding]:
        """Which UCX is used, its settings, the cards there are, whether enough memory may be locked, and which lanes the connections of
        this process were given, with the reason where they are no RDMA."""
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
        else:  # without a card nobody misses it
            found, _, fix = advice.partition("; ")
            yield Finding("warning" if cards else "ok", "locked memory", found, fix if cards else "")

    @classmethod
    def dial(cls, address: Address, options: Any, timeout: float) -> RdmaChannel:
        return dial(address, options, timeout)


class UcxTransport(RdmaTransport):
    """The same under its other name: `ucx://`."""

    scheme = "ucx"


class RdmaClient(Client):
    """A worker's connection over UCX.

    Args:
        host: the learner's host name or address.
        port: its port.
        example: a pytree like the server's: one sample.
        **options: as of `echo_core.Client`.

    Raises: as `echo_core.Client`.
    """

    def __init__(self, host: str, port: int, example: Any, **options: Any) -> None:
        super().__init__(Address("rdma", host, port), example, **options)

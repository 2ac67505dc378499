"""Options of RDMA, at either end."""

from __future__ import annotations

from dataclasses import dataclass, field

from echo_core.base.transport_options import ConnectOptions, ListenOptions

__all__ = ["RdmaConnectOptions", "RdmaListenOptions"]


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
    heartbeat: float = 1.0  # seconds between heartbeats
    lease: float = 10.0  # seconds without any message until a worker counts as lost
    spin: float = 20e-6  # seconds without work until the thread that serves sleeps
    busy_poll: bool = False  # it never sleeps: takes a core, saves some µs
    credit_bytes: int = 64 << 20  # bytes of samples that one worker may be ahead of the store

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.credit_bytes < 1:
            raise ValueError(f"credit_bytes must be at least 1, not {self.credit_bytes}")
        if not self.host:
            raise ValueError('host is empty; write "0.0.0.0" for every interface')
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be a whole number from 0 to 65535, not {self.port}")
        check_times(self)


@dataclass(frozen=True, kw_only=True)
class RdmaConnectOptions(ConnectOptions):
    """Options of a worker's connection."""

    window_bytes: int = 16 << 20
    require_rdma: bool = False  # refuse a learner that would be reached by TCP or shared memory
    heartbeat: float = 1.0  # seconds between heartbeats
    lease: float = 10.0  # seconds without any message until the learner counts as lost and is dialled again
    spin: float = 20e-6  # seconds without work until the thread that sends sleeps
    busy_poll: bool = False  # it never sleeps: takes a core, saves some µs

    def __post_init__(self) -> None:
        super().__post_init__()
        check_times(self)

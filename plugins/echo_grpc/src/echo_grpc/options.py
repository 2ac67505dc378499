"""Options of gRPC, at either end."""

from __future__ import annotations

from dataclasses import dataclass, field

from echo_core.security import tls
from echo_core.wire.protocol import HEADER_BYTES
from echo_net.network.connection_rate import CONNECTION_RATE, check_connection_rate

from .protobuf import PIECE_BYTES

__all__ = ["GrpcConnectOptions", "GrpcListenOptions"]


@dataclass(frozen=True, kw_only=True)
class GrpcListenOptions(tls.TlsListenOptions):
    """Options of `GrpcTransport`; those that begin with tls_ are only for grpcs://."""

    host: str = "127.0.0.1"  # an address or name of this machine; "::" is every interface, IPv4 too
    port: int = 50051  # 0: any free one
    token: str | bytes | None = field(default=None, repr=False)  # None: the server's
    allow_insecure: bool = False  # listen beyond this machine without authentication
    receive_window: int = 2 << 20  # bytes that gRPC receives of a worker before the learner reads them; a long path needs bandwidth x round trip
    max_connection_rate: float = CONNECTION_RATE  # new connections a second; further ones wait outside. 0: any number
    reflection: bool = False  # describe the service to generic clients; needs echo-grpc[reflection]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.host:
            raise ValueError('host is empty; write "0.0.0.0" or "::" for every interface')
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be a whole number from 0 to 65535, not {self.port}")
        if not 64 << 10 <= self.receive_window <= 1 << 30:
            raise ValueError(f"receive_window must be from 65536 (64 KiB) to 1073741824 (1 GiB) bytes, not {self.receive_window}")
        check_connection_rate(self.max_connection_rate)


@dataclass(frozen=True, kw_only=True)
class GrpcConnectOptions(tls.TlsConnectOptions):
    """Options of a gRPC connection; those that begin with tls_ are only for grpcs://."""

    # A message costs both ends some 200 µs, no matter how large it is, so a busy link fills its messages. For large samples see MessageWindow.
    max_coalesced_bytes: int = PIECE_BYTES - HEADER_BYTES
    keepalive: float = 20.0  # seconds of silence until the worker asks whether the learner is still there

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.1 <= self.keepalive <= 86400:
            raise ValueError(f"keepalive must be from 0.1 to 86400 seconds, not {self.keepalive}")

"""Options of TCP, at either end, with TLS and without."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from echo_core.base.transport_options import ConnectOptions, ListenOptions
from echo_core.security import tls
from echo_net.network.connection_rate import CONNECTION_RATE, check_connection_rate

__all__ = ["TcpConnectOptions", "TcpListenOptions", "TcpsConnectOptions", "TcpsListenOptions"]


@dataclass(frozen=True, kw_only=True)
class TcpListenOptions(ListenOptions):
    """Options of `TcpTransport`."""

    host: str = "127.0.0.1"  # an address or name of this machine; "::" is every interface, IPv4 too
    port: int = 50051  # 0: any free one
    num_threads: int = 1  # threads that read; one is enough for several GB/s
    protocol: Literal["echo2", "echo1"] = "echo2"  # "echo1": the original wire format
    token: str | bytes | None = field(default=None, repr=False)  # None: the server's
    allow_insecure: bool = False  # listen beyond this machine without authentication
    max_connection_rate: float = CONNECTION_RATE  # new connections a second; further ones wait outside. 0: any number
    receive_buffer: int = 0  # bytes in the kernel for each connection; 0: it grows as needed
    staging_bytes: int = 256 << 20  # memory of each thread for large frames that find no slots
    checksum: bool = False  # CRC-32C over all bytes, which clients must use as well; see channels/checksum.py

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.host:
            raise ValueError('host is empty; write "0.0.0.0" or "::" for every interface')
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be a whole number from 0 to 65535, not {self.port}")
        if not 1 <= self.num_threads <= 256:
            raise ValueError(f"num_threads must be from 1 to 256, not {self.num_threads}")
        check_connection_rate(self.max_connection_rate)
        for name in ("receive_buffer", "staging_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be below 0, but is {getattr(self, name)}")
        if self.protocol == "echo1" and self.checksum:
            raise ValueError('the original protocol has no checksums; leave out checksum or protocol="echo1"')
        if self.protocol == "echo1" and self.token is not None:
            raise ValueError(
                "the original protocol has no authentication, so token=... would protect nothing;"
                ' leave out the token or protocol="echo1"'
            )

    @property
    def authenticated(self) -> bool:
        """Whether clients have to prove that they hold the token."""
        return self.auth and self.protocol != "echo1"


@dataclass(frozen=True, kw_only=True)
class TcpConnectOptions(ConnectOptions):
    """Options of a TCP connection, beside those of every connection."""

    # Most bytes of samples that are kept until acknowledged, and so in flight; three samples always have room. With several workers on the learner's
    # machine, only three frames are in flight. In a small window, a frame has at most a quarter of these bytes.
    window_bytes: int = 2 << 20
    send_buffer: int = 0  # bytes in the kernel; 0: it grows as needed
    # Most bytes of samples gathered into one frame on a busy link. Larger frames need fewer system calls and wake-ups;
    # still larger ones would leave the second-level cache between gathering and sending.
    max_coalesced_bytes: int = 384 << 10
    protocol: str = "echo2"  # "echo1": for a server of the original Echo; does not reconnect
    checksum: bool = False  # CRC-32C over all bytes, which the learner must use as well; see channels/checksum.py

    def __post_init__(self) -> None:
        if self.protocol not in ("echo2", "echo1"):
            raise ValueError(f"protocol must be 'echo2' or 'echo1', not {self.protocol!r}")
        if self.protocol == "echo1" and self.checksum:
            raise ValueError('the original protocol has no checksums; leave out checksum or protocol="echo1"')
        if self.protocol == "echo1" and self.role != "worker":
            raise ValueError('the original protocol has workers only; leave out role or protocol="echo1"')
        for name in ("window_bytes", "max_coalesced_bytes", "max_inflight_msgs"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value < 1 << 48:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if type(self.send_buffer) is not int or not 0 <= self.send_buffer < 1 << 30:
            raise ValueError(f"send_buffer must be 0 to 2**30 bytes, not {self.send_buffer!r}")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class TcpsListenOptions(tls.TlsListenOptions):
    """Options of `TcpsTransport`."""

    host: str = "127.0.0.1"  # an address or name of this machine; "::" is every interface, IPv4 too
    port: int = 50051  # 0: any free one
    token: str | bytes | None = field(default=None, repr=False)  # None: the server's
    allow_insecure: bool = False  # listen beyond this machine without authentication
    max_connection_rate: float = 100.0  # new connections a second; further ones wait outside. 0: any number
    receive_buffer: int = 0  # bytes in the kernel for each connection; 0: it grows as needed

    def __post_init__(self) -> None:
        super().__post_init__()
        # The same checks as without TLS.
        TcpListenOptions(**{f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("tls_")})


@dataclass(frozen=True, kw_only=True)
class TcpsConnectOptions(tls.TlsConnectOptions):
    """Options of a TCP connection with TLS."""

    window_bytes: int = 8 << 20
    max_coalesced_bytes: int = 512 << 10

"""Options that every listener and every connection understands.

A transport declares its own options as frozen dataclasses that derive from these two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SILENCE", "ConnectOptions", "ListenOptions", "check_silence"]

SILENCE = 30.0  # seconds. Each end sends something at least every third of it


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """Options every listener understands; a transport's own `Options` derive from this."""

    timeout: float = 30.0  # seconds: the default timeout of every wait
    auth: bool = True  # False: serve every client that can connect, whatever `sink.tokens` says
    max_connections: int = 4096  # further clients are refused with code "busy"
    max_pending: int = 256  # clients that may be in their handshake at the same time
    handshake_timeout: float = 10.0  # seconds in which a client has to finish its handshake
    silence: float = SILENCE  # seconds without a byte after which the other end counts as lost

    def __post_init__(self) -> None:
        if not self.timeout >= 0:
            raise ValueError(f"timeout must be at least 0 seconds, not {self.timeout!r}")
        if self.max_connections < 1:
            raise ValueError(f"max_connections must be at least 1, not {self.max_connections}")
        for name in ("max_pending", "handshake_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        check_silence(self.silence)


@dataclass(frozen=True, kw_only=True)
class ConnectOptions:
    """Options every connection understands; a transport's own `ConnectOptions` derive from this."""

    timeout: float = 30.0  # seconds: the default timeout of every wait, and how long the client tries to reconnect
    token: bytes | None = field(default=None, repr=False)  # None works only with a learner that asks for no token
    allow_unauthenticated: bool = False  # True: a client with a token also accepts a learner that asks for none
    client_id: str = ""  # 32 hex digits that stay the same over reconnects; "" draws a random one
    name: str = ""  # shown to people; "" is host:pid
    role: str = "worker"  # an "observer" sends no experience and needs no right to send any
    table: str = ""  # the learner's replay table that gets the samples; "" is its first table, or its stream
    window_bytes: int = 64 << 20  # samples are kept until they are acknowledged: at most this many bytes ...
    max_inflight_msgs: int = 65536  # ... and this many samples; `send` waits when either limit is reached
    max_coalesced_bytes: int = 256 << 10  # bytes of samples that are gathered into one frame on a busy link
    reconnect: bool = True  # False: a lost connection is final
    silence: float = SILENCE  # seconds without a byte after which the learner counts as lost
    resolve: Any = None  # for code: called before every dial, it returns the Address, or raises ConnectionClosedError if there is none yet

    def __post_init__(self) -> None:
        if not self.timeout >= 0:
            raise ValueError(f"timeout must be at least 0 seconds, not {self.timeout!r}")
        for name in ("window_bytes", "max_inflight_msgs", "max_coalesced_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_coalesced_bytes > 16 << 20:
            raise ValueError("max_coalesced_bytes cannot exceed 16 MiB, the most a frame carries")
        if self.client_id and not re.fullmatch("[0-9a-f]{32}", self.client_id):
            raise ValueError(f"client_id must be 32 hex digits, not {self.client_id!r}")
        check_silence(self.silence)


def check_silence(seconds: float) -> None:
    """Raise ValueError unless `seconds` may be the option `silence`."""
    if not 0.001 <= seconds <= 86400:
        raise ValueError(f"silence must be from 0.001 to 86400 seconds, not {seconds!r}")

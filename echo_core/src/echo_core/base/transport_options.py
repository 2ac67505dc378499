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
    """Options that every listener understands. A transport's own `Options` derive from this.

    Args:
        timeout: the default timeout of every wait, in seconds.
        auth: False serves every client that can connect, whatever `sink.tokens` has.
        max_connections: how many clients are served at the same time. Further clients are refused with the code "busy".
        max_pending: how many clients may be in their handshake at the same time.
        handshake_timeout: in how many seconds a client has to finish its handshake.
        silence: after how many seconds without a byte the other end counts as lost.
    """

    timeout: float = 30.0
    auth: bool = True
    max_connections: int = 4096
    max_pending: int = 256
    handshake_timeout: float = 10.0
    silence: float = SILENCE

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
    """Options that every connection understands. A transport's own `ConnectOptions` derive from this.

    Args:
        timeout: the default timeout of every wait, and how long a client tries to reconnect, in seconds.
        token: the client's token. None works only with a learner that asks for none.
        allow_unauthenticated: True also accepts a learner that asks for no token although this client has one.
        client_id: 32 hex digits, which stay the same over reconnects; "" draws a random id.
        name: the name of this client for people; "" stands for host:pid.
        role: "worker", or "observer", which sends no experience and needs no right to send any.
        table: the learner's replay table that gets the samples; "" stands for its first table, or its stream.
        window_bytes: how many bytes of samples are kept until they are acknowledged. `send` waits at this limit and at the next one.
        max_inflight_msgs: how many samples are kept until they are acknowledged.
        max_coalesced_bytes: how many bytes of samples are gathered into one frame on a busy link.
        reconnect: False makes a lost connection final.
        silence: after how many seconds without a byte the learner counts as lost.
        connect_timeout: in code only: how many seconds `connect()` may take; None: `timeout`. A client gives what a resolver left of its `timeout`.
        resolve: a function, in code only. It is called before every dial as `resolve(seconds)`; within that time it returns the `Address` or raises
            ConnectionClosedError.
    """

    timeout: float = 30.0
    token: bytes | None = field(default=None, repr=False)
    allow_unauthenticated: bool = False
    client_id: str = ""
    name: str = ""
    role: str = "worker"
    table: str = ""
    window_bytes: int = 64 << 20
    max_inflight_msgs: int = 65536
    max_coalesced_bytes: int = 256 << 10
    reconnect: bool = True
    silence: float = SILENCE
    connect_timeout: float | None = None
    resolve: Any = None

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

    @property
    def connect_seconds(self) -> float:
        """How many seconds `connect()` may take."""
        return self.timeout if self.connect_timeout is None else self.connect_timeout


def check_silence(seconds: float) -> None:
    """Raise ValueError unless `seconds` may be the option `silence`."""
    if not 0.001 <= seconds <= 86400:
        raise ValueError(f"silence must be from 0.001 to 86400 seconds, not {seconds!r}")

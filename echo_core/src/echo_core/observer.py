"""Looking at a running server from outside, without its example: what live views and checks connect with."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from . import plugins, security
from .address import Address
from .spec import Spec

__all__ = ["Observer"]


class Observer:
    """A connection that sends no samples and counts as no worker; it asks a server for its figures.

    Args:
        address: where the server listens; the scheme selects the transport.
        timeout: seconds: default of every wait, and for how long an unreachable server is tried again.
        token: the shared secret; None takes ECHO_TOKEN, ECHO_TOKEN_FILE or the user's token file.
        auth: False connects without a token, to a server that asks for none.
        name: how the server's log calls it.

    Raises:
        EchoTimeoutError: nobody answers there. SecurityError: token missing or refused. PluginError: the transport is not installed.
        HandshakeRefused: the server is older than observers.
    """

    def __init__(
        self,
        address: str | Address,
        *,
        timeout: float = 5.0,
        token: str | bytes | None = None,
        auth: bool = True,
        name: str = "observer",
    ) -> None:
        self.address = Address.parse(address)
        self.timeout = timeout
        # Some spec has to be there; the handshake of an observer compares none, and it is never used.
        self._connection = plugins.transport_class(self.address.scheme).connect(
            self.address,
            Spec.from_example(np.zeros(1, np.uint8)),
            role="observer",
            name=name,
            timeout=timeout,
            token=security.find_token(token) if auth else None,
        )

    def request(self, op: str, body: dict[str, Any] | None = None, timeout: float | None = None) -> dict[str, Any]:
        """Ask for an operation by name. Raises EchoError with the server's words, EchoTimeoutError."""
        return self._connection.request(op, body or {}, b"", timeout)[0]

    def stats(self, timeout: float | None = None) -> dict[str, Any]:
        """`Server.stats()`."""
        return self.request("stats", timeout=timeout)

    def ping(self) -> tuple[float, float]:
        """Seconds of one round trip, and by how many the server's clock is ahead of this one (to within half a round trip)."""
        start, sent = time.monotonic(), time.time()
        theirs = float(self.request("ping")["time"])
        took = time.monotonic() - start
        return took, theirs - (sent + took / 2)

    def close(self) -> None:
        """End the connection. Idempotent."""
        self._connection.close(1.0)

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Observer {self.address}>"

"""Takes the weights of another server, for a server that passes them on (`Server(weights_from=...)`), and tells that server who has them.

It connects as an observer and comes again whenever the connection is lost. Versions keep their numbers and digests, and are passed on only
when they are whole and verified.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...base.address import Address
from ...base.errors import ConfigError, ConnectionClosedError, EchoError, EchoTimeoutError, HandshakeRefused, JobEnded, PluginNotFound
from ...base.returned import returned
from ...plugins import discovery
from ...plugins.reaching import reach
from ...security import tokens
from ...spec.spec import Spec
from ...wire.transport import Connection
from .receipts import Receipts, as_json, path_of

if TYPE_CHECKING:
    from ...wire.weights import PackedWeights

__all__ = ["WeightsSource"]

_log = logging.getLogger("echo")

DIAL_SECONDS = 5.0  # for one attempt to connect, and for one report
PAUSES = (0.1, 2.0)  # seconds between two attempts: at first, and at most
TICK = 0.25  # seconds between two looks at who holds what
REPORT_SECONDS = 2.0  # a report is sent at least so often: a connection that was lost and is back has none
END_SECONDS = 1.0  # for the thread to end


class Relay(Protocol):
    """The server that passes the weights on."""

    def pass_on(self, packed: PackedWeights) -> None: ...
    def receipts(self) -> Receipts: ...
    def close(self) -> None: ...
    @property
    def learner_id(self) -> str: ...


class WeightsSource:
    """The source of a server's weights.

    Attributes:
        address: of the source.
        connected: whether it sends its weights to this server now.
        error: why it does not, if it does not; None before the first attempt is over.
        job_ended: whether the source has ended the job. The server is closed then, and tells its own clients.
    """

    def __init__(self, address: str | Address, token: tokens.Explicit) -> None:
        self.address = Address.parse(address)
        try:
            discovery.transport_class(self.address.scheme)
        except PluginNotFound:
            if not discovery.resolves(self.address.scheme):
                raise
        self.connected = False
        self.error: Exception | None = None
        self.job_ended = False
        self._token = token
        self._path: list[list[str]] = []  # the servers above this one, as the source told it
        self._told = ""  # the error that was logged last
        self._over = threading.Event()
        self._connection: Connection | None = None
        self._server: weakref.ref[Relay]
        self._thread = threading.Thread(target=self._run, name="echo-weights", daemon=True)

    @property
    def path(self) -> list[list[str]]:
        """The id and the address of the source, of its own source, and so on."""
        return self._path if self.connected else []

    @property
    def refused(self) -> bool:
        """Whether the error is a verdict of the source or of this server, such as a wrong token. Otherwise the source may not be there yet."""
        error = self.error
        if isinstance(error, HandshakeRefused):
            return error.code not in ("busy", "shutdown", "ended")
        return isinstance(error, EchoError) and not isinstance(error, (ConnectionClosedError, EchoTimeoutError))

    def stats(self) -> dict[str, int | str]:
        return {"source": str(self.address), "source_connected": int(self.connected), "source_error": "" if self.error is None else str(self.error)}

    def start(self, server: Relay) -> None:
        """Begin to pass weights on to `server`, which this does not keep alive."""
        self._server = weakref.ref(server)
        self._thread.start()

    def stop(self) -> None:
        """Take no more weights. The thread ends soon; an attempt to connect may take a few seconds."""
        self._over.set()
        if (connection := self._connection) is not None:
            with suppress(EchoError, OSError):
                connection.close(0)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(END_SECONDS)

    def _run(self) -> None:
        pause = PAUSES[0]
        while not self._over.is_set() and self._server() is not None:
            try:
                self._connection = connection = self._connect()
                try:
                    self._follow(connection)
                finally:
                    pause = PAUSES[0] if self.connected else pause
                    self.connected, self._connection = False, None
                    with suppress(EchoError, OSError):
                        connection.close(0)
                    del connection
            except JobEnded as error:
                self._end(error)
                return
            except Exception as error:  # whatever a plugin raises: without this thread the server would have old weights for ever
                self._failed(error.with_traceback(None))
            self._over.wait(pause)
            pause = min(2 * pause, PAUSES[1])

    def _connect(self) -> Connection:
        reached = reach(self.address, None, DIAL_SECONDS)
        made = reached.transport.connect(
            reached.address,
            Spec.from_example(np.zeros(1, np.uint8)),  # an observer's handshake does not compare it
            role="observer",
            name=f"relay {socket.gethostname()}:{os.getpid()}",
            timeout=DIAL_SECONDS,
            token=tokens.find_token(self._token),
            **reached.options,
        )
        return returned(made, Connection, f"{self.address}: connect()")

    def _follow(self, connection: Connection) -> None:
        """Pass on what comes, until the connection ends. Raises why it has ended, or why this server may not have the weights."""
        told, told_at = self._report(connection), time.monotonic()
        self.connected, self.error = True, None
        _log.info("weights come from %s", self.address)
        newest: int | None = None
        while not self._over.is_set():
            with suppress(EchoTimeoutError):
                packed = connection.packed_weights(TICK, newest)
                newest = packed.version
                if (server := self._server()) is None:
                    return
                server.pass_on(packed)
                del server, packed
            if self._receipts() != told or time.monotonic() >= told_at + REPORT_SECONDS:
                told, told_at = self._report(connection), time.monotonic()

    def _receipts(self) -> Receipts:
        server = self._server()
        return {} if server is None else server.receipts()

    def _report(self, connection: Connection) -> Receipts:
        """Tell the source who holds what here, and learn who is above it. Raises ConfigError if this server is."""
        receipts = self._receipts()
        body, _ = connection.request("weights/relay", {"receipts": as_json(receipts)}, b"", DIAL_SECONDS)
        path = path_of(body.get("path"))
        if (server := self._server()) is not None:
            ids = [one for one, _ in path]
            if (own := server.learner_id) in ids:
                way = [where for _, where in path[: ids.index(own) + 1]]
                chain = ", which takes them from ".join(way)
                raise ConfigError(f"this server would take its own weights: they come from {chain}; set weights_from to the learner")
        self._path = path
        return receipts

    def _end(self, error: JobEnded) -> None:
        """The source has ended the job: end it here, too."""
        self.error, self.job_ended = error.with_traceback(None), True
        _log.info("%s", error)
        server = self._server()
        if server is not None and not self._over.is_set():
            server.close()

    def _failed(self, error: Exception) -> None:
        if self._over.is_set():
            return
        self.error = error
        text = f"{type(error).__name__}: {error}"
        if text != self._told:
            self._told = text
            known = error if isinstance(error, (EchoError, OSError)) else repr(error)
            _log.log(logging.ERROR if self.refused else logging.WARNING, "no weights come from %s: %s; it is tried again", self.address, str(known))

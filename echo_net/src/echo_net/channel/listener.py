"""The learner's end of a channel transport: a thread that accepts, and one for each client."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from echo_core.base.errors import EchoError, ProtocolError
from echo_core.base.returned import returned, with_address
from echo_core.base.transport_options import ListenOptions
from echo_core.security.tokens import TokenSource
from echo_core.wire.peer import Peer
from echo_core.wire.protocol import CLOSING, DRAINING, JOB_ENDED
from echo_core.wire.transport import Listener

from ..scatter import Inserter
from .channel import Acceptor, Channel
from .fair_lock import FairLock
from .host import Host, Intake
from .served import ServedClient
from .sessions import Sessions

if TYPE_CHECKING:
    from typing import Self

    from echo_core.wire.sink import Sink
    from echo_core.wire.weights import PackedWeights

__all__ = ["ChannelListener"]

log = logging.getLogger("echo")

ACCEPT_PAUSE = 0.2  # seconds, when the process is out of file descriptors or memory
CROWDED_SECONDS = 2.0  # in a crowd a handshake may be thrown out after so long
COMPLAINT_PAUSE = 1.0  # seconds between two log lines of one kind about strangers


class ChannelListener(Listener, Host[ServedClient]):
    """See `echo_core.wire.transport.Listener`; made by `ChannelTransport.listen`.

    A transport may extend it: with another class of clients (`served`), more counters, and its own `publish`, `withdraw`, `weights_memory`, `peers`,
    `stats` and `close`, which any thread may call and which call the method here without holding a lock that clients take.

    Attributes:
        served: what a client is served by.
        counters: what `count` counts.
        acceptor: where clients arrive.
        sink, options, sessions, newest, renumbered: see `Host`.
    """

    served: ClassVar[type[ServedClient]] = ServedClient
    counters: ClassVar[tuple[str, ...]] = (
        "connections_total",
        "samples",
        "duplicates",
        "bytes_received",
        "bytes_sent",
        "refused",
        "protocol_errors",
        "weights_sent",
    )

    def __init__(self, acceptor: Acceptor, sink: Sink, options: ListenOptions) -> None:
        self.address = acceptor.address
        self.sink = sink
        self.options = options
        own = getattr(options, "token", None)
        self._own_tokens = TokenSource(own) if own is not None and options.auth else None
        _ = self.tokens  # so that a token file that cannot be used is an error here
        self.sessions = Sessions()
        self._intakes: dict[str, Intake] = {}  # by table, under the lock
        self.newest: PackedWeights | None = sink.weights
        self.renumbered = False
        self._newest_version = 0 if self.newest is None else self.newest.version
        self.farewell = CLOSING
        self.acceptor = acceptor
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._clients: set[ServedClient] = set()
        self._pending: dict[ServedClient, float] = {}  # in their handshake, since, oldest first
        self._admitted: set[ServedClient] = set()  # strangers do not count for max_connections
        self._room = threading.Condition(self._lock)
        self._complained: dict[str, float] = {}  # by text: when it was logged last
        self._counts = dict.fromkeys(self.counters, 0)
        self._thread = threading.Thread(target=self._accept, name="echo-accept", daemon=True)
        self._thread.start()

    @classmethod
    def on(cls, acceptor: Acceptor, sink: Sink, options: ListenOptions) -> Self:
        """One that serves `acceptor`, which is closed if it cannot. Raises PluginError if `bind` returned something else."""
        with_address(returned(acceptor, Acceptor, "bind()"))
        try:
            return cls(acceptor, sink, options)
        except BaseException:
            acceptor.shutdown()
            acceptor.close()
            acceptor.finish()
            raise

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                channel = returned(self.acceptor.accept(), Channel, "accept()")
            except Exception as error:  # whatever a plugin raises: without this thread nobody is let in any more
                if not self._closing.is_set():
                    shown = error if isinstance(error, (OSError, EchoError)) else repr(error)
                    self._complain("%s cannot accept clients: %s", self.address, str(shown))
                    self._closing.wait(ACCEPT_PAUSE)
                continue
            client: ServedClient | None = None
            try:
                client = self.served(self, channel)
                self._make_room()
                with self._lock:
                    self._clients.add(client)
                    self._pending[client] = time.monotonic()
                client.thread.start()
            except Exception as error:  # such as: no more threads
                self._complain("%s cannot serve a client: %s", self.address, str(error) if isinstance(error, RuntimeError) else repr(error))
                if client is not None:
                    with self._lock:
                        self._clients.discard(client)
                        self._pending.pop(client, None)
                with suppress(Exception):  # it may want one as well
                    channel.shutdown()
                    channel.close()

    def intake(self, sink: Sink) -> Intake:
        with self._lock:
            name = sink.table_name
            if name not in self._intakes:
                self._intakes[name] = Intake(FairLock(), Inserter(sink.native, sink.labelled))
            return self._intakes[name]

    def _make_room(self) -> None:
        """Wait until one more handshake may be under way; in a crowd the oldest is thrown out."""
        with self._room:
            while len(self._pending) >= self.options.max_pending and not self._closing.is_set():
                oldest, since = next(iter(self._pending.items()))
                left = since + CROWDED_SECONDS - time.monotonic()
                if left <= 0:
                    del self._pending[oldest]
                    oldest.throw_out()
                else:
                    self._room.wait(min(left, 0.1))

    def decided(self, client: ServedClient) -> None:
        with self._room:
            self._pending.pop(client, None)
            self._room.notify_all()

    def take_place(self, client: ServedClient) -> bool:
        self.decided(client)
        with self._lock:
            free = len(self._admitted) < self.options.max_connections
            if free:
                self._admitted.add(client)
            return free

    # -------------------------------------------------------------------- the listener's face

    def publish(self, weights: PackedWeights) -> None:
        with self._lock:
            if weights is self.newest:
                return
            self.renumbered |= weights.version <= self._newest_version
            self.newest, self._newest_version = weights, weights.version
        clients = self.serving()
        for client in clients:
            with client.gate.lock:
                client.gate.work.notify_all()
        self.sink.client_memory.limit_downloads(
            weights.version,
            [
                (client.peer.memory, pinned.version, pinned.nbytes)
                for client in clients
                if (pinned := client.pinned) is not None and client.peer.memory is not None
            ],
        )

    def withdraw(self) -> None:
        with self._lock:
            self.newest = None

    def peers(self) -> list[Peer]:
        clients = self.serving()
        for client in clients:
            client.refresh()
        return [client.peer for client in clients]

    def stats(self) -> dict[str, float | int]:
        clients = self.serving()
        with self._lock:
            counts: dict[str, float | int] = dict(self._counts)
        counts["active_connections"] = len(clients)
        for name, count in self.acceptor.counts().items():
            counts[name] = counts.get(name, 0) + count
        for client in clients:
            if client.link is not None:
                counts["bytes_received"] += client.link.received
                counts["bytes_sent"] += client.link.sent
        return counts

    def drain(self, timeout: float | None = None) -> None:
        self.farewell = DRAINING
        self.close(timeout)

    def end_job(self, timeout: float | None = None) -> None:
        self.farewell = JOB_ENDED
        self.close(timeout)

    def close(self, timeout: float | None = None) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        until = time.monotonic() + (self.options.timeout if timeout is None else timeout)
        try:
            self.acceptor.shutdown()
            self._thread.join()
            self.acceptor.close()
            with self._lock:
                clients = list(self._clients)
            # Side by side: one that takes its time must not use up the time of the others.
            stops = [threading.Thread(target=client.stop, args=(until,)) for client in clients]
            for stop in stops:
                stop.start()
            for stop in stops:
                stop.join()
        finally:  # interrupted, too: a thread of the acceptor's could keep the process
            self.acceptor.finish()

    # -------------------------------------------------------------------- what clients report

    @property
    def tokens(self) -> Sequence[bytes]:
        if not self.options.auth:
            return ()
        return self.sink.tokens if self._own_tokens is None else self._own_tokens()

    def cannot_serve(self) -> tuple[str, str] | None:
        if self._closing.is_set():
            return self.farewell.code, self.farewell.text
        if len(self._admitted) >= self.options.max_connections:
            return "busy", f"this learner serves {self.options.max_connections} clients already; raise max_connections"
        return None

    def turned_away(self, address: str, error: Exception) -> None:
        self.count("protocol_errors" if isinstance(error, ProtocolError) else "refused")
        # Its text: a handler that keeps records would keep the error's frames, and with them the store.
        self._complain("%s turned %s away: %s", self.address, address or "a client", str(error))

    def gone(self, client: ServedClient) -> None:
        with self._room:
            self._clients.discard(client)
            self._admitted.discard(client)
            self._pending.pop(client, None)
            self._room.notify_all()
            if client.link is not None:
                self._counts["bytes_received"] += client.link.received
                self._counts["bytes_sent"] += client.link.sent

    def count(self, name: str, n: int = 1) -> None:
        with self._lock:
            self._counts[name] += n

    def serving(self) -> list[ServedClient]:
        """The clients whose handshake is done. From any thread, without a lock that clients take."""
        with self._lock:
            return [client for client in self._clients if client.link is not None]

    def _complain(self, text: str, *values: object) -> None:
        """Log, each kind of complaint at most once a second: strangers must not fill the disk, or hide another kind."""
        with self._lock:
            now = time.monotonic()
            if now - self._complained.get(text, -COMPLAINT_PAUSE) < COMPLAINT_PAUSE:
                return
            self._complained[text] = now
        log.warning(text, *values)

"""The learner's end, which puts sockets, the control thread and the native loops together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from echo_core.base.address import Address
from echo_core.wire.peer import Peer
from echo_core.wire.protocol import DRAINING, JOB_ENDED
from echo_core.wire.transport import Listener
from echo_net.handshake import ServerHandshake
from echo_net.network.connection_rate import ConnectionRateLimit

from .._learner import NativeLearner
from ..echo1 import Echo1Handshake, greeting
from ..sockets import listen_on
from .control import Control
from .loops import Loops
from .requests import Requests

if TYPE_CHECKING:
    from echo_core.wire.sink import Sink
    from echo_core.wire.weights import PackedWeights

    from ..options import TcpListenOptions

__all__ = ["TcpListener"]

STREAMING_SECONDS = 1.0  # how long after its last byte a worker still counts as streaming
HALF_SECONDS = 0.1  # a message that is incomplete for so long is reported
CLOSE_SECONDS = 5.0  # default of close()
LEAST_SECONDS = 0.25  # for each answer of the control thread, also with timeout=0


class TcpListener(Listener):
    """See `echo_core.wire.transport.Listener`; made by `TcpTransport.listen`."""

    def __init__(
        self, options: TcpListenOptions, sink: Sink, tokens: Callable[[], Sequence[bytes]]
    ) -> None:
        tokens()  # raises now if the token file cannot be used
        make_handshake: Callable[[str], ServerHandshake | Echo1Handshake] = Echo1Handshake
        said_first = b""
        if options.protocol == "echo1":
            names: tuple[str, ...] = ("",)  # its clients name no table
            said_first = greeting(sink.spec)
        else:
            make_handshake = lambda address: ServerHandshake(  # noqa: E731
                sink.spec, tokens(), sink.incarnation, tables=sink.tables, labels=sink.labels, silence=options.silence, hold=True
            )
            names = ("", *list(sink.tables)[1:])
        sockets, port = listen_on(options.host, options.port, options.receive_buffer)
        self.address = Address("tcp", options.host, port)
        self._rate_limit = ConnectionRateLimit(options.max_connection_rate)
        try:
            # Other kinds of memory that clients make the server hold need the rest of the budget.
            loops = max(1, options.num_threads) * len(names)
            staging = min(options.staging_bytes, max(1, sink.client_memory.limit // (4 * loops)))
            requests = Requests()
            self._natives = Loops(
                lambda name, group: _native(sink.table(name), options.num_threads, staging, options.silence, requests.queue, group),
                names,
            )
            self._control = Control(sockets, self._natives, requests, sink, make_handshake, options, said_first, self._rate_limit.let_in)
            try:
                requests.start(self._control.answer)
            except BaseException:
                self._control.stop(LEAST_SECONDS)
                raise
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        self._rate_limit.watch(sockets, str(self.address))
        self._process = os.getpid()
        self._close_lock = threading.Lock()
        self._closed = False
        if sink.weights is not None:
            self.publish(sink.weights)

    def publish(self, weights: PackedWeights) -> None:
        self._natives.publish(weights)
        self._control.memory_watch.look()

    def withdraw(self) -> None:
        self._natives.withdraw()

    def peers(self) -> list[Peer]:
        peers = self._control.peers()
        now = time.monotonic()
        for table, native in list(self._natives.items()):
            for row in native.peers():
                if (peer := peers.get((table, row["key"]))) is not None:
                    _update(peer, row, now)
        return list(peers.values())

    def stats(self) -> dict[str, float | int]:
        """The contract's counters, and also: `held_off_total` (attempts to connect that waited outside); `waiting_for_space` (connections that
        wait now); `parked_total` (how often one had to wait); `evicted_total` (large frames taken out of their slots because their
        sender stalled); `staged_bytes` (held for frames outside the store); `frames`;
        `frames_direct` (frames read straight into slots); `acks`; `weights_sent`; `rounds`."""
        each = [native.totals() for native in list(self._natives.values())]
        totals = {name: sum(one[name] for one in each) for name in each[0]}
        counts = self._control.counts
        return {
            "connections_total": counts["connections_total"],
            "active_connections": totals["active"],
            "samples": totals["samples"],
            "duplicates": totals["duplicates"],
            "bytes_received": totals["bytes_received"],
            "bytes_sent": totals["bytes_sent"],
            "refused": counts["refused"],
            "held_off_total": self._rate_limit.held_off,
            "protocol_errors": counts["protocol_errors"] + totals["protocol_errors"],
            "waiting_for_space": totals["waiting"],
            "parked_total": totals["parked"],
            "evicted_total": totals["evicted"],
            "staged_bytes": totals["staged_bytes"],
            "frames": totals["frames"],
            "frames_direct": totals["direct_frames"],
            "acks": totals["acks"],
            "weights_sent": totals["weights_sent"],
            "rounds": totals["rounds"],
        }

    def drain(self, timeout: float | None = None) -> None:
        self._control.farewell = DRAINING
        self.close(timeout)

    def end_job(self, timeout: float | None = None) -> None:
        self._control.farewell = JOB_ENDED
        self.close(timeout)

    def close(self, timeout: float | None = None) -> None:
        if os.getpid() != self._process:
            return  # a forked child does not have the threads and must not say goodbye
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            until = time.monotonic() + (CLOSE_SECONDS if timeout is None else timeout)
            # The thread answers within moments unless a hook is stuck. The loops get the rest of the
            # time for farewells.
            self._rate_limit.close()
            self._control.stop_accepting(max(LEAST_SECONDS, until - time.monotonic()))
            farewell = self._control.farewell
            for native in self._natives.values():
                native.stop(max(0.0, until - time.monotonic()), farewell.text.encode(), farewell.flags)
            self._control.stop(max(LEAST_SECONDS, until - time.monotonic()))


def _update(peer: Peer, row: dict[str, int], now: float) -> None:
    """Bring `peer` up to date with its connection's figures."""
    peer.samples, peer.bytes = row["samples"], row["bytes"]
    peer.weights_version, peer.weights_digest = row["version"], row["digest"]
    read_at = row["read_at"] / 1e9 or peer.state_since  # 0: nothing could be read yet
    if row["parked_at"]:
        state, since = "waiting for space", row["parked_at"] / 1e9
    elif row["partial"] and now - read_at >= HALF_SECONDS:
        state, since = "half a message", read_at
    elif row["wanted_at"] and now >= (quiet_at := row["sampled_at"] / 1e9 + STREAMING_SECONDS):
        state, since = "waiting for weights", max(row["wanted_at"] / 1e9, quiet_at)
    elif row["bytes"] and now - read_at < STREAMING_SECONDS:
        state, since = "streaming", read_at
    else:
        state, since = "idle", read_at
    if state != peer.state or state != "streaming":
        peer.state, peer.state_since = state, since


def _native(sink: Sink, *options: Any) -> NativeLearner:
    return NativeLearner(sink.native, sink.labelled, *options)

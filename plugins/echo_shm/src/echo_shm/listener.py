"""The learner's end of shared memory: a channel listener that hands its store to workers, and a thread that watches the workers.

A worker that must not see the store gets a lane of its own instead (lanes.py).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from echo_core.base.errors import ConnectionClosedError
from echo_core.base.plural import counted
from echo_net.channel.listener import ChannelListener

from ._reaper import SharedStore
from .board import Board
from .served import ShmHost, ShmServed
from .writer import Writer

if TYPE_CHECKING:
    import numpy as np

    from echo_core.wire.sink import Sink
    from echo_core.wire.weights import PackedWeights
    from echo_net.channel.sessions import Session

    from .lanes import Lane
    from .options import ShmListenOptions
    from .sockets import UnixAcceptor

__all__ = ["ShmListener"]

log = logging.getLogger("echo")

LOOK_SECONDS = 0.25  # between two checks of the workers' claims
LEAVE_SECONDS = 1.0  # for a worker whose connection has ended to leave the memory
LEAST_SECONDS = 0.1  # the same when the listener closes with timeout=0
DEATH_SECONDS = 0.005  # the same while a worker has left and its process may be about to end


class ShmListener(ChannelListener, ShmHost):
    """See `echo_core.wire.transport.Listener`; made by `ShmTransport.listen`."""

    served = ShmServed

    def __init__(self, acceptor: UnixAcceptor, sink: Sink, options: ShmListenOptions) -> None:
        #: None if the store is not that of a stream, or workers must not see it. Then their samples come over the socket.
        self.shared = SharedStore(sink, options.claim_timeout) if options.mode == "direct" and sink.memory is not None else None
        self.lanes: dict[Session, Lane] = {}  # the lanes from which samples are copied
        self.board = Board(self._is_read)
        self.publishing = threading.Lock()  # held while the board changes
        self._put_last: tuple[int, int, str] | None = None
        self._sample_bytes = sink.spec.sample_bytes
        if sink.weights is not None:
            self._put(sink.weights)
        self._writers: set[Writer] = set()
        self._watch = threading.Condition()
        self._ending = False
        self._ends_at = math.inf  # time.monotonic() after which a closing listener waits for nobody
        self._keeper: threading.Thread | None = None
        self._reaped = dict.fromkeys(("samples", "revoked", "killed", "moved"), 0)
        self._told_stuck = False
        super().__init__(acceptor, sink, options)

    # --------------------------------------------------------------------------------- weights

    def weights_memory(self, count: int) -> np.ndarray | None:
        with self.publishing:
            try:
                return self.board.memory(count)
            except OSError:  # they are packed elsewhere, and `publish` says what is lacking
                return None

    def withdraw(self) -> None:
        with self.publishing:
            self.board.newest = None
        super().withdraw()

    def _is_read(self) -> bool:
        """Whether a worker was told of a version and has not confirmed it."""
        return any(client.is_reading() for client in self.serving())

    def publish(self, weights: PackedWeights) -> None:
        self._put(weights)
        super().publish(weights)

    def _put(self, weights: PackedWeights) -> None:
        with self.publishing:
            try:
                if self.board.newest is None or self._put_last != (weights.version, weights.digest, weights.learner):
                    self.board.put(weights)
                    self._put_last = weights.version, weights.digest, weights.learner
            except OSError as error:
                self.board.close()  # weights then travel over the sockets
                log.warning("%s has no shared memory for %s of weights: %s", "echo_shm", counted(weights.nbytes, "byte"), error)

    # ---------------------------------------------------------------------- requests of clients

    def admit(self, pid: int, wanted: int, session: Session, name: str) -> Writer | None:
        shared = self.shared
        if shared is None:
            return None
        records = [shared.enlist() for _ in range(wanted)]
        try:
            if 0 in records:
                raise OSError("too many workers have")
            writer = Writer(shared, records, pid, session, name)
            try:
                self._watch_over(writer)
            except BaseException:
                writer.handed_over()
                writer.forget()
                raise
        except (OSError, RuntimeError) as error:  # RuntimeError: no more threads
            for record in filter(None, records):
                shared.reap(record)
            log.warning("worker %s gets no memory of %s: %s; it gets a lane, or sends over the socket", name, self.address, str(error))
            return None
        return writer

    def _watch_over(self, writer: Writer) -> None:
        with self._watch:
            if self._keeper is None:
                keeper = threading.Thread(target=self._keep, name="echo-shm-keeper", daemon=True)
                keeper.start()
                self._keeper = keeper
            self._writers.add(writer)
            self._watch.notify_all()

    def lane_ended(self, session: Session, lane: Lane) -> None:
        with self._watch:
            del self.lanes[session]
            self._reaped["samples"] += lane.samples
            lane.counted = True

    def give_up(self, record: int) -> None:
        if (shared := self.shared) is not None:
            shared.give_up(record)

    def left(self, writer: Writer) -> None:
        with self._watch:
            writer.gone_since = time.monotonic()
            self._watch.notify_all()

    # ------------------------------------------------------------------------------- the keeper

    def _keep(self) -> None:
        shared = self.shared
        assert shared is not None
        while True:
            with self._watch:
                leaving = [w for w in self._writers if w.gone_since]
                recent = any(self._may_leave(w) for w in leaving)
                if not self._ending or recent:
                    self._watch.wait((DEATH_SECONDS if recent else LOOK_SECONDS) if self._writers else None)
                writers = list(self._writers)
                if self._ending and not any(map(self._may_leave, writers)):
                    break
            self._look(shared, writers)
        for writer in writers:  # the store is closing, so slots that they still hold do not matter
            writer.forget()

    def _may_leave(self, writer: Writer) -> bool:
        """Whether its connection ended so recently that its process may be about to leave the memory. `close` does not wait longer than it may."""
        now = time.monotonic()
        return bool(writer.gone_since) and now < min(writer.gone_since + LEAVE_SECONDS, self._ends_at)

    def _look(self, shared: SharedStore, writers: list[Writer]) -> None:
        for writer in writers:
            if writer.gone_since and (writer.left() or writer.dead()):
                self._reap(writer)
            elif not writer.gone_since and writer.dead():
                self._hang_up(writer)  # a child of the dead worker may still have the socket open
        moved, stuck = shared.tick()
        self._reaped["moved"] += moved
        if moved:
            log.warning("%s: %s did not wait any longer for workers that are stopped", self.address, counted(moved, "batch", "batches"))
        if stuck and not self._told_stuck:
            log.warning("%s: stopped workers hold up %s, as no spare buffer is left; raise spare_buffers", self.address, counted(stuck, "batch", "batches"))
        self._told_stuck = stuck > 0

    def _reap(self, writer: Writer) -> None:
        samples = writer.samples
        with self._watch:
            self._writers.discard(writer)
            self._reaped["samples"] += samples
            self._reaped["revoked"] += writer.revoked()
            self._reaped["killed"] += not writer.left()
        with writer.session.lock:
            writer.session.inserted += samples
        writer.reap()

    def _hang_up(self, writer: Writer) -> None:
        for client in self.serving():
            if isinstance(client, ShmServed) and client.writer is writer and client.link is not None:
                client.link.fail(ConnectionClosedError("its process is gone"))

    # ---------------------------------------------------------------------- the listener's face

    def stats(self) -> dict[str, float | int]:
        """The counters of every listener, and also: direct_workers, private_workers, killed_workers, revoked_claims, moved_batches."""
        counts = super().stats()
        with self._watch:
            reaped, writers, lanes = dict(self._reaped), list(self._writers), list(self.lanes.values())
        ways: tuple[Any, ...] = (*writers, *lanes)
        samples = reaped["samples"] + sum(way.samples for way in ways)
        counts["samples"] += samples
        counts["bytes_received"] += samples * self._sample_bytes
        counts["direct_workers"], counts["private_workers"] = len(writers), len(lanes)
        counts["killed_workers"] = reaped["killed"]
        counts["revoked_claims"] = reaped["revoked"] + sum(w.revoked() for w in writers)
        counts["moved_batches"] = reaped["moved"]
        return counts

    def close(self, timeout: float | None = None) -> None:
        until = time.monotonic() + (self.options.timeout if timeout is None else timeout)
        super().close(timeout)
        with self._watch:
            self._ending = True
            self._ends_at = max(until, time.monotonic() + LEAST_SECONDS)
            self._watch.notify_all()
            keeper = self._keeper
        if keeper is not None:
            keeper.join()
        with self._watch:
            self._writers.clear()
            self.shared = None  # it would keep the store's memory
        with self.publishing:
            self.board.close()

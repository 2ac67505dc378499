"""The learner's end of shared memory: a channel listener that hands its store to workers, and a thread that looks after them.

A worker that is to see nothing of the store gets a lane of its own instead (lanes.py).
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from echo_core.channel.link import Work
from echo_core.channel.listener import ChannelListener
from echo_core.channel.served import STREAMING_SECONDS, ServedClient
from echo_core.errors import ConnectionClosedError, ProtocolError, SecurityError
from echo_core.wire import Kind, frame, pack_request

from .board import Board
from .connection import WEIGHTS
from .lanes import Lane

if TYPE_CHECKING:
    import numpy as np

    from echo_core.channel.link import Link
    from echo_core.channel.sessions import Session
    from echo_core.shared import SharedStore
    from echo_core.sink import Sink
    from echo_core.weights import PackedWeights
    from echo_core.wire import Buffer, Header

    from .sockets import UnixAcceptor, UnixChannel
    from .transport import ShmListenOptions

__all__ = ["ShmListener"]

LANE_BROKEN = "it wrote to its lane what cannot be: a count of samples beyond what the lane holds"

log = logging.getLogger("echo")

LOOK_SECONDS = 0.25  # between two looks at the claims of workers
DEATH_SECONDS = 0.005  # the same while somebody has left and its process may be about to go


class Writer:
    """A worker that has the store mapped, from then until nothing of it can write there any more.

    Two things tell when its process has ended. A pidfd is not to be had of a process in a foreign pid namespace, nor of one that has died by now, nor
    where a filter forbids it. The `lifeline`, a pipe whose other end stays open for as long as the store is mapped there, may be held by a child of it.
    """

    def __init__(self, shared: SharedStore, records: list[int], pid: int, session: Session, name: str) -> None:
        self.records, self.session, self.name = records, session, name
        self.gone_since = 0.0  # its connection ended, at this time.monotonic()
        self._shared = shared
        ours, self.lifeline = os.pipe()
        self._ends, self._watched = select.poll(), [ours]
        self._ends.register(ours, 0)  # hung up, whatever is written to it
        with suppress(OSError):
            if pid > 0:
                self._watched.append(os.pidfd_open(pid))
                self._ends.register(self._watched[-1], select.POLLIN)

    def handed_over(self) -> None:
        """The other end of the lifeline is the worker's now, or lost with what was on its way to it."""
        os.close(self.lifeline)

    @property
    def samples(self) -> int:
        return sum(map(self._shared.samples, self.records))

    def revoked(self) -> int:
        return sum(map(self._shared.revoked, self.records))

    @property
    def waiting(self) -> float:
        return self._shared.waiting(self.records[0])

    def dead(self) -> bool:
        """Its process has ended, or never got the store: it writes nothing, whatever it was doing."""
        return bool(self._ends.poll(0))

    def left(self) -> bool:
        """It has said that it makes no more changes."""
        return all(map(self._shared.left, self.records))

    def reap(self) -> None:
        for record in self.records:
            self._shared.reap(record)
        self.forget()

    def forget(self) -> None:
        while self._watched:
            os.close(self._watched.pop())


class ShmServed(ServedClient):
    """One worker. Beside what every channel's client does, it may ask for the store, or for a lane."""

    listener: ShmListener
    writer: Writer | None = None
    lane: Lane | None = None
    _generation = 0  # of the board it has
    _answered = False  # it has been told where its samples go
    _counted = 0  # samples put directly, when the state was last looked at
    _counted_at = 0.0

    def _serve(self) -> None:
        try:
            super()._serve()
        finally:
            if self.writer is not None:
                self.listener.left(self.writer)

    def _read(self, link: Link) -> None:
        try:
            super()._read(link)
        finally:
            if self.lane is not None and self._end_lane(self.lane):
                raise ProtocolError(LANE_BROKEN)

    def _end_lane(self, lane: Lane) -> bool:
        """Copy what is whole, as far as there is space. Whether the worker broke its lane."""
        while not lane.finish(timeout=LOOK_SECONDS):
            pass
        with self._session.lock:
            self._session.inserted += lane.samples
            self.peer.samples = self._session.inserted
        self.listener.lane_ended(self._session, lane)
        return lane.broken

    def evict(self, timeout: float) -> None:
        if self.lane is not None:
            self.lane.finish(timeout=0)
        super().evict(timeout)

    def stop(self, until: float) -> None:
        if self.lane is not None:  # first of all, so that the worker hears what was committed
            self.lane.finish(timeout=max(0.0, until - time.monotonic()))
        super().stop(until)

    def _control(self, link: Link, header: Header, payload: Buffer) -> None:
        super()._control(link, header, payload)
        with self.gate.lock:
            # Descriptors are taken in the order in which they were given: that of the board must not overtake the answer to `shm/attach`.
            self._answered = self.writer is not None or self.lane is not None

    def _answer(self, op: str, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        if self.lane is not None and not op.startswith("shm/"):
            self.lane.catch_up(lambda: self.link is None or self.link.error is not None)  # requests follow the samples sent before them
        if op == "shm/attach":
            if self.peer.role != "worker":
                raise SecurityError(f"an {self.peer.role} sends no experience, and may not write to the learner's memory")
            return self._attach(body), b""
        if op == "shm/give_up":
            record = body.get("record")
            if self.writer is None or record not in self.writer.records:
                raise ProtocolError(f"record {record!r} is not this worker's")
            self.listener.give_up(record)
            return {}, b""
        if op == "shm/again":
            with self.gate.lock:
                self._on_the_way = 0
                self.gate.work.notify_all()
            return {}, b""
        return super()._answer(op, body, blob)

    def _attach(self, body: dict[str, Any]) -> dict[str, Any]:
        wanted: Any = body.get("records")
        rows: Any = body.get("rows")
        sane = type(wanted) is int and 1 <= wanted <= 65 and type(rows) is int and rows >= 1
        if not sane or self.writer is not None or self.lane is not None:
            raise ProtocolError(f"{wanted!r} records and {rows!r} rows cannot be had")
        channel: UnixChannel = self._channel  # type: ignore[assignment]
        former = self.listener.lanes.get(self._session)
        if former is not None and not former.ended:
            # Two copiers would insert samples twice; it comes again.
            assert self.link is not None
            self.link.fail(ConnectionClosedError("its former connection still copies samples"))
            return {}
        shared = self.listener.shared
        if body.get("mode") == "direct" and shared is not None:
            self.writer = self.listener.admit(channel.pid, wanted, self._session, self.peer.name)
            if self.writer is not None:
                try:
                    channel.give(shared.fd)
                    channel.give(self.writer.lifeline)
                finally:
                    self.writer.handed_over()
                return {"mode": "direct", "records": self.writer.records}
        try:
            lane = Lane(self._sink, self.listener.options.lane_bytes, rows)  # type: ignore[attr-defined]
            self._begin(lane, channel)
        except (OSError, MemoryError, RuntimeError) as error:  # RuntimeError: no more threads
            # Its text: a handler that keeps records would keep the error's frames, and with them the lane.
            log.warning("worker %s gets no lane of %s, its samples come over the socket: %s", self.peer.name, self.listener.address, str(error))
            return {"mode": "socket"}
        self.lane = self.listener.lanes[self._session] = lane
        return {"mode": "private", "rows": lane.rows}

    def _begin(self, lane: Lane, channel: UnixChannel) -> None:
        """Copy from it, and hand it over. Nobody knows of a lane before that is done: one without a copier would be waited for in vain."""
        try:
            lane.start(self._lane_over)
            channel.give(lane.fd)
        except BaseException:
            lane.finish(timeout=0)
            raise
        finally:
            lane.handed_over()

    def _lane_over(self, broken: bool) -> None:
        """The copier's last call: there will be no more of it."""
        assert self.link is not None
        self.link.fail(ProtocolError(LANE_BROKEN) if broken else ConnectionClosedError("the store is closed"))

    def _work(self) -> Work | None:
        notice = self.listener.board.newest
        due = self._subscribed and not self._on_the_way and self._chunks is None and not self._ack_due
        reads = self._answered and (self.writer is not None or self.listener.board.sealed)
        if not reads or notice is None or not due or notice.version <= self._held:
            return super()._work()
        return self._notice()

    def _notice(self) -> Work | None:
        """Where the newest version lies; with the memory itself, if it has not got that yet."""
        channel: UnixChannel = self._channel  # type: ignore[assignment]
        with self.listener.publishing:
            notice, fd = self.listener.board.newest, self.listener.board.fd
            if notice is None:
                return None
            new = notice.generation != self._generation
            if new:
                channel.give(fd)
        self._generation, self._on_the_way = notice.generation, notice.version
        return [frame(Kind.CONTROL, pack_request("shm/weights", notice._asdict() | {"new": new}), seq=WEIGHTS)], 0

    def _receipt(self, version: int, digest: int) -> None:
        newest = self.listener.board.newest
        with self.gate.lock:
            # A worker that reads the board takes what is newest by then, if that is newer than what it was told of.
            if self._on_the_way and self._chunks is None and newest is not None and self._on_the_way < version <= newest.version:
                self._on_the_way = version
        super()._receipt(version, digest)

    def refresh(self) -> None:
        super().refresh()
        way = self.writer or self.lane
        if way is None or (self.lane is not None and self.lane.counted):
            return
        samples, now = way.samples, time.monotonic()
        if samples != self._counted:
            self._counted, self._counted_at = samples, now
        self.peer.samples = self._session.inserted + samples
        self.peer.bytes += samples * self._sink.spec.sample_bytes
        waiting = way.waiting
        if waiting:
            self._show("waiting for space", now - waiting)
        elif now < self._counted_at + STREAMING_SECONDS:
            self._show("streaming", self._counted_at)

    def _show(self, state: str, since: float) -> None:
        if state != self.peer.state:
            self.peer.state, self.peer.state_since = state, since


class ShmListener(ChannelListener):
    """See `echo_core.transport.Listener`; made by `ShmTransport.listen`."""

    served = ShmServed

    def __init__(self, acceptor: UnixAcceptor, sink: Sink, options: ShmListenOptions) -> None:
        #: None: the store is not a stream's, or workers are not to see it; then their samples come over the socket.
        self.shared = sink.shared(options.claim_timeout) if options.mode == "direct" else None
        self.lanes: dict[Session, Lane] = {}  # those that are copied from
        self.board = Board()
        self.publishing = threading.Lock()  # held while the board changes
        self._sample_bytes = sink.spec.sample_bytes
        if sink.weights is not None:
            self._put(sink.weights)
        self._writers: set[Writer] = set()
        self._watch = threading.Condition()
        self._ending = False
        self._keeper: threading.Thread | None = None
        self._reaped = dict.fromkeys(("samples", "revoked", "killed", "moved"), 0)
        self._told_stuck = False
        super().__init__(acceptor, sink, options)

    # --------------------------------------------------------------------------------- weights

    def weights_memory(self, count: int) -> np.ndarray | None:
        with self.publishing:
            return self.board.memory(count)

    def publish(self, weights: PackedWeights) -> None:
        self._put(weights)
        super().publish(weights)

    def _put(self, weights: PackedWeights) -> None:
        with self.publishing:
            try:
                if self.board.newest is None or self.board.newest.version < weights.version:
                    self.board.put(weights)
            except OSError as error:
                self.board.close()  # then they travel over the sockets
                log.warning("%s has no shared memory for %d bytes of weights: %s", "echo_shm", weights.nbytes, error)

    # ------------------------------------------------------------------------- what clients ask

    def admit(self, pid: int, wanted: int, session: Session, name: str) -> Writer | None:
        """Records for a worker that maps the store; None if it cannot have any."""
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
        """Its connection has ended; it may be alive, and in the middle of a sample."""
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
                recent = any(time.monotonic() - w.gone_since < 1.0 for w in leaving)
                if not self._ending or recent:
                    self._watch.wait((DEATH_SECONDS if recent else LOOK_SECONDS) if self._writers else None)
                writers = list(self._writers)
                if self._ending and not any(w.gone_since and time.monotonic() - w.gone_since < 1.0 for w in writers):
                    break
            self._look(shared, writers)
        for writer in writers:  # the store is closing: what they still hold is nobody's
            writer.forget()

    def _look(self, shared: SharedStore, writers: list[Writer]) -> None:
        for writer in writers:
            if writer.gone_since and (writer.left() or writer.dead()):
                self._reap(writer)
            elif not writer.gone_since and writer.dead():
                self._hang_up(writer)  # a child of it has the socket still open
        moved, stuck = shared.tick()
        self._reaped["moved"] += moved
        if moved:
            log.warning("%s: %d batches did not wait any longer for workers that are stopped", self.address, moved)
        if stuck and not self._told_stuck:
            log.warning("%s: %d batches wait for stopped workers, as no spare buffer is left; raise spare_buffers", self.address, stuck)
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
        for client in self._served():
            if isinstance(client, ShmServed) and client.writer is writer and client.link is not None:
                client.link.fail(ConnectionClosedError("its process is gone"))

    # ---------------------------------------------------------------------- the listener's face

    def stats(self) -> dict[str, float | int]:
        """Beside what every listener counts: direct_workers, private_workers, killed_workers, revoked_claims, moved_batches."""
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
        super().close(timeout)
        with self._watch:
            self._ending = True
            self._watch.notify_all()
            keeper = self._keeper
        if keeper is not None:
            keeper.join()
        with self._watch:
            self._writers.clear()
            self.shared = None  # it keeps the store's memory
        with self.publishing:
            self.board.close()

"""One worker at the learner's end: it gets the store, or a lane of its own (lanes.py), and notices that say where new weights lie."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from echo_core.base.errors import ConnectionClosedError, ProtocolError, SecurityError
from echo_core.wire.protocol import Kind, frame, pack_request
from echo_net.channel.host import Host
from echo_net.channel.served import ServedClient
from echo_net.channel.subscription import WeightsOffer

from .lanes import Lane
from .uplink import WEIGHTS

if TYPE_CHECKING:
    import threading

    from echo_core.base.address import Address
    from echo_core.wire.later import Later
    from echo_core.wire.protocol import Blob, Buffer
    from echo_net.channel.link import Link
    from echo_net.channel.sessions import Session

    from ._reaper import SharedStore
    from .board import Board
    from .options import ShmListenOptions
    from .sockets import UnixChannel
    from .writer import Writer

__all__ = ["ShmHost", "ShmServed"]

log = logging.getLogger("echo")

LANE_BROKEN = "it wrote an impossible count of samples to its lane: more than the lane holds"
FINISH_SECONDS = 0.25  # one wait for space; it is repeated until all samples in a lane are copied


class ShmHost(Host[Any]):
    """The part of the listener that a served worker needs, beside the part that every served client needs.

    Attributes:
        shared: the store that workers map; None if they must not see it.
        lanes: the lanes from which samples are copied now, by session.
        board: the memory of the weights. `publishing` is held while it changes.
    """

    address: Address
    options: ShmListenOptions
    shared: SharedStore | None
    lanes: dict[Session, Lane]
    board: Board
    publishing: threading.Lock

    @abstractmethod
    def admit(self, pid: int, wanted: int, session: Session, name: str) -> Writer | None:
        """Records for a worker that maps the store; None if it cannot have any."""

    @abstractmethod
    def lane_ended(self, session: Session, lane: Lane) -> None:
        """No more samples are copied from this lane."""

    @abstractmethod
    def give_up(self, record: int) -> None:
        """Take back the slot that a worker claimed with this record."""

    @abstractmethod
    def left(self, writer: Writer) -> None:
        """The connection of this worker has ended. The worker may still be alive and in the middle of a sample."""


class ShmServed(ServedClient):
    """One worker. It is served like every client of a channel, but it may also ask for the store or for a lane."""

    listener: ShmHost
    writer: Writer | None = None
    lane: Lane | None = None
    _generation = 0  # generation of the board that it has
    _answered = False  # whether the worker knows where its samples go
    _counted = 0  # number of samples put directly when the state was last read

    def ended(self) -> None:
        if self.writer is not None:
            self.listener.left(self.writer)

    def read_frames(self, link: Link) -> None:
        try:
            super().read_frames(link)
        finally:
            if self.lane is not None and self._end_lane(self.lane):
                raise ProtocolError(LANE_BROKEN)

    def _end_lane(self, lane: Lane) -> bool:
        """Copy all whole samples, as far as there is space. Returns whether the worker broke its lane."""
        while not lane.finish(timeout=FINISH_SECONDS):
            pass
        with self.session.lock:
            self.session.inserted += lane.samples
            self.peer.samples = self.session.inserted
        self.listener.lane_ended(self.session, lane)
        return lane.broken

    def evict(self, timeout: float) -> None:
        if self.lane is not None:
            self.lane.finish(timeout=0)
        super().evict(timeout)

    def stop(self, until: float) -> None:
        if self.lane is not None:  # comes first, so that the worker learns which samples were committed
            self.lane.finish(timeout=max(0.0, until - time.monotonic()))
        super().stop(until)

    def answer_request(self, number: int, payload: Buffer) -> None:
        super().answer_request(number, payload)
        with self.gate.lock:
            # Descriptors are taken in the order in which they were given, so the board's must not overtake the answer to `shm/attach`.
            self._answered = self.writer is not None or self.lane is not None

    def on_request(self, op: str, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Blob] | Later:
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
            self.offer_weights_again()
            return {}, b""
        return super().on_request(op, body, blob)

    def _attach(self, body: dict[str, Any]) -> dict[str, Any]:
        wanted: Any = body.get("records")
        rows: Any = body.get("rows")
        sane = type(wanted) is int and 1 <= wanted <= 65 and type(rows) is int and rows >= 1
        if not sane or self.writer is not None or self.lane is not None:
            raise ProtocolError(f"it asked for {wanted!r} records and {rows!r} rows, which is not possible")
        channel: UnixChannel = self.channel  # type: ignore[assignment]
        former = self.listener.lanes.get(self.session)
        if former is not None and not former.ended:
            # Two copiers would insert samples twice, so this connection ends; the worker comes again.
            assert self.link is not None
            self.link.fail(ConnectionClosedError("its former connection still copies samples"))
            return {}
        shared = self.listener.shared
        if body.get("mode") == "direct" and shared is not None:
            self.writer = self.listener.admit(channel.pid, wanted, self.session, self.peer.name)
            if self.writer is not None:
                try:
                    channel.give(shared.fd)
                    channel.give(self.writer.lifeline)
                finally:
                    self.writer.handed_over()
                return {"mode": "direct", "records": self.writer.records}
        try:
            lane = Lane(self.sink, self.listener.options.lane_bytes, rows)
            self._begin(lane, channel)
        except (OSError, MemoryError, RuntimeError) as error:  # RuntimeError: no more threads
            # Logged as text: a handler that keeps records would otherwise keep the error's frames, and with them the lane.
            log.warning("worker %s gets no lane of %s, its samples come over the socket: %s", self.peer.name, self.listener.address, str(error))
            return {"mode": "socket"}
        self.lane = self.listener.lanes[self.session] = lane
        return {"mode": "private", "rows": lane.rows}

    def _begin(self, lane: Lane, channel: UnixChannel) -> None:
        """Start the copier and hand the lane over. The lane is published only after that, because others would wait in vain for one without a copier."""
        try:
            lane.start(self._lane_over)
            channel.give(lane.fd)
        except BaseException:
            lane.finish(timeout=0)
            raise
        finally:
            lane.handed_over()

    def _lane_over(self, broken: bool) -> None:
        """The copier's last call: it has ended."""
        assert self.link is not None
        self.link.fail(ProtocolError(LANE_BROKEN) if broken else ConnectionClosedError("the store is closed"))

    def offer_weights(self, held: int) -> WeightsOffer | None:
        """The notice that says where the newest version lies, for a worker that can read it there; with the memory, if the worker does not have it yet."""
        notice = self.listener.board.newest
        reads = self._answered and (self.writer is not None or self.listener.board.sealed)
        if not reads or notice is None:
            return super().offer_weights(held)
        if self.holds(notice.version, notice.digest):
            return None
        channel: UnixChannel = self.channel  # type: ignore[assignment]
        with self.listener.publishing:
            notice, fd = self.listener.board.newest, self.listener.board.fd
            if notice is None:
                return None
            new = notice.generation != self._generation
            if new:
                channel.give(fd)
        self._generation = notice.generation
        told = {"version": notice.version, "generation": notice.generation, "new": new}
        frames: list[list[Buffer]] = [[frame(Kind.CONTROL, pack_request("shm/weights", told), seq=WEIGHTS)]]
        return WeightsOffer(notice.version, iter(frames))

    def fits(self, sent: int, version: int) -> bool:
        """Whether `version` is a valid receipt. A worker that reads the board takes the newest version, which may be newer than the announced one."""
        newest = self.listener.board.newest
        return version == sent or (newest is not None and sent < version <= newest.version)

    def refresh(self) -> None:
        way = self.writer or self.lane
        if way is None or (self.lane is not None and self.lane.counted):
            super().refresh()
            return
        samples, waiting, now = way.samples, way.waiting, time.monotonic()
        if samples != self._counted:
            self._counted, self.sampled_at = samples, now
        self.waiting_since = now - waiting if waiting else 0.0
        super().refresh()
        self.peer.samples = self.session.inserted + samples
        self.peer.bytes += samples * self.sink.spec.sample_bytes

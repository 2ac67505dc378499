"""One client as a channel listener serves it, on a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...base.errors import ClosedError, ConnectionClosedError, EchoError, EchoTimeoutError, ProtocolError
from ..handshake import ServerHandshake
from ..peer import Peer
from ..protocol import (
    LAST,
    MORE,
    REPLY,
    TO_LEARNER,
    U64,
    Blob,
    Buffer,
    Header,
    Kind,
    frame,
    weights_frames,
)
from .calls import Calls, answer
from .channel import Channel
from .link import LOG_AFTER, Gate, Link, Work, deadline, run_handshake, wait_until
from .sessions import Session, Sessions

if TYPE_CHECKING:
    from ...base.transport_options import ListenOptions
    from ..scatter import Inserter
    from ..sink import Sink
    from ..weights import PackedWeights
    from .fair_lock import FairLock

__all__ = ["Host", "Intake", "ServedClient"]

log = logging.getLogger("echo")

T = TypeVar("T")

LOOK_UP_SECONDS = 0.25  # while waiting for space: how soon an evicted client lets go
TELL_SECONDS = 0.01  # of waiting for space, until what is stored is acknowledged: the client has use for the room
FAREWELL_SECONDS = 1.0  # for a client to read the learner's goodbye and hang up
TURN_ROWS = 256  # samples of one client before it is another's turn
STREAMING_SECONDS = 1.0  # how long after its last byte a client still counts as streaming


class Intake(NamedTuple):
    """One table, or the stream: clients that wait for its space take turns, and delay nobody at another table."""

    turn: FairLock
    inserter: Inserter


class Host:
    """What a served client needs of the listener that serves it."""

    sink: Sink
    options: ListenOptions
    sessions: Sessions
    newest: PackedWeights | None

    @property
    @abstractmethod
    def tokens(self) -> Sequence[bytes]:
        """Tokens that let a client in now."""

    @abstractmethod
    def cannot_serve(self) -> tuple[str, str] | None:
        """Code and text of a refusal, if no more clients can be taken."""

    @abstractmethod
    def take_place(self, client: ServedClient) -> bool:
        """Its handshake went well. False: others were quicker to take the last place."""

    @abstractmethod
    def decided(self, client: ServedClient) -> None:
        """Its handshake is over, well or not."""

    @abstractmethod
    def turned_away(self, address: str, error: Exception) -> None:
        """Its handshake failed: counted and logged."""

    @abstractmethod
    def intake(self, sink: Sink) -> Intake:
        """Where the samples of `sink`'s clients go in."""

    @abstractmethod
    def gone(self, client: ServedClient) -> None:
        """Its thread ends."""

    @abstractmethod
    def count(self, name: str, n: int = 1) -> None:
        """Add to one of the listener's counters."""


class ServedClient:
    """A client from its first byte to its last.

    A frame of samples is received whole before a slot is claimed for any of them, so a client
    that stops in the middle of one holds nothing but its own memory.
    """

    def __init__(self, listener: Host, channel: Channel) -> None:
        self.listener = listener
        self.peer = Peer(id="", name="", address=channel.peer)
        self.gate = Gate()
        self.calls = Calls(self.gate)
        self.link: Link | None = None  # once the handshake is done
        self.finished = threading.Event()
        self.thread = threading.Thread(target=self._run, name="echo-client", daemon=True)
        self._sink = listener.sink
        self._channel = channel
        self._session: Session
        self._waiting_since = 0.0  # for space
        self._parted = threading.Event()  # `stop` has said what it had to say
        # Under the gate's lock.
        self._begun = False  # the client is told where to go on, before which it understands nothing else
        self._committing = False
        self._stopping = False
        self._ack_due = False
        self._acknowledged = 0  # the newest number that was acknowledged, or is about to be
        self._subscribed = False
        self._held = 0  # version the client holds
        self._on_the_way = 0  # version sent, or being sent, and not confirmed
        self._chunks: Iterator[list[Buffer]] | None = None

    # --------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            if self._admit():
                self._serve()
        except Exception:
            log.exception("client %s", self.peer.address)
        finally:
            self.finished.set()
            self.listener.gone(self)

    def _admit(self) -> bool:
        """The handshake; False if the client was turned away."""
        listener, sink = self.listener, self._sink
        handshake = None
        try:
            handshake = ServerHandshake(sink.spec, listener.tokens, sink.incarnation, tables=sink.tables)
            with deadline(self._channel, listener.options.handshake_timeout, "a handshake"):
                reason = listener.cannot_serve()
                if reason:
                    # Its HELLO is read first: hanging up on unread bytes may destroy the answer.
                    self._channel.recv_into(memoryview(bytearray(8192)))
                    self._channel.send([handshake.refuse(*reason)])
                    raise ConnectionClosedError(reason[1])
                run_handshake(self._channel, handshake)
            if not listener.take_place(self):  # it comes again, and is told why
                raise ConnectionClosedError("others came first: max_connections clients are served")
        except (EchoError, OSError, RuntimeError) as error:  # RuntimeError: no more threads
            listener.decided(self)  # now nobody else touches the channel
            self._channel.shutdown()
            self._channel.close()
            if handshake is None or handshake.refusal or not handshake.offered_labels:  # otherwise it comes again
                listener.turned_away(self.peer.address, error)
            return False
        hello = handshake.peer
        try:
            self._sink = sink = sink.table(hello["table"])
        except EchoError as error:  # the server has just gone
            self._channel.shutdown()
            self._channel.close()
            listener.turned_away(self.peer.address, error)
            return False
        self._intake = listener.intake(sink)
        self.peer.address = self._channel.peer  # by now it may know more
        self.peer.id, self.peer.name, self.peer.role = hello["client"], hello["name"], hello["role"]
        self.peer.pid, self.peer.host = hello["pid"], hello["host"]
        self.peer.permissions = hello["permissions"]
        self.peer.connected_at, self.peer.state_since = time.time(), time.monotonic()
        listener.count("connections_total")
        self.link = Link(
            self._channel,
            handshake.leftover,
            sink.spec.sample_bytes,
            TO_LEARNER,
            self.gate,
            self._work,
        )
        # An observer has no samples, and cannot meddle with those of a worker whose id it knows.
        worker = self.peer.role == "worker"
        session = hello["client"] if worker else f"observer {hello['client']}"
        self._session = listener.sessions.open(session, hello["base"] if worker else 0, self)
        return True

    def _serve(self) -> None:
        assert self.link is not None
        reason = ""
        self._sink.connected(self.peer)
        try:
            with self.gate.lock:
                if self._stopping:
                    raise ConnectionClosedError("the learner is closing")
                self.link.post(self._acknowledgement())
                self.link.start()
                self._begun = True
            self._read(self.link)
        except ClosedError:
            pass  # the store takes no more: the learner is closing
        except ProtocolError as error:
            reason = f"it broke the protocol: {error}"
            self.listener.count("protocol_errors")
        except (EchoError, OSError) as error:
            reason = str(error)
            if not self._stopping:
                # Whoever stops this now has nothing to wait for. Not the error itself: its frames lead back here, and what they hold would be
                # left to the garbage collector, gRPC's objects too, which must not go in a forked child.
                self.link.fail(ConnectionClosedError(reason))
        finally:
            with self.gate.lock:
                self.calls.fail(ConnectionClosedError(reason or "the worker left"))
                stopping = self._stopping
                reason = "" if stopping else reason
            if stopping:
                self._parted.wait()
                self.link.drain()
            self.link.finish()
            self.listener.sessions.release(self._session, self)
            self._sink.lost(self.peer, reason)

    def _read(self, link: Link) -> None:
        """Frames until BYE; returns when the client or the listener ends in order."""
        while not self._stopping:
            if link.crowded():
                self._until_read(link)
            header = link.read_header()
            if header.kind is Kind.DATA:
                self._data(link, header)
            elif header.kind is Kind.CONTROL:
                self._control(link, header, link.read(header.length))
            elif header.kind is Kind.PING:
                if not header.flags & REPLY:
                    self._post(frame(Kind.PING, flags=REPLY, seq=header.seq))
            elif header.kind is Kind.SUBSCRIBE:
                with self.gate.lock:
                    self._subscribed = True
                    if not self._on_the_way:
                        self._held = header.seq
                    self.gate.work.notify_all()
            elif header.kind is Kind.RECEIPT:
                self._receipt(header.seq, U64.unpack(link.read(header.length))[0])
            else:
                link.read(header.length)
                return

    def _until_read(self, link: Link) -> None:
        """Wait until the client has read most of its answers. Raises why the link ended.

        Every PING and request is answered, so that a client which asks and never reads would have them pile up here until the learner
        is killed for its memory. Only this end holds back: a worker goes on reading whatever it has to write, so that two ends never
        wait for each other.
        """
        with self.gate.lock, self.gate.watching():
            self.gate.changed.wait_for(lambda: link.error is not None or not link.crowded())
        if link.error is not None:
            raise link.error

    # ------------------------------------------------------------------------------ samples

    def _data(self, link: Link, header: Header) -> None:
        if self.peer.role != "worker":
            raise ProtocolError(f"a client of the role {self.peer.role!r} sends no experience")
        payload = link.read(header.length)
        self.peer.bytes = link.received
        known = self._session.committed + 1 - header.seq  # samples of the frame that we have
        if known < 0:
            raise ProtocolError(
                f"samples {self._session.committed + 1} to {header.seq - 1} were never sent"
            )
        with self.gate.lock:
            if self._stopping:  # what is stored behind the goodbye is never acknowledged, and goes to the next learner as well
                raise ConnectionClosedError("the learner is closing")
            self._committing = True
        try:
            self._store(link, payload, min(known, header.count), header.count)
        finally:
            with self.gate.lock:
                self._committing = False
                if not header.flags & MORE:
                    self._ack_due = True
                    self.gate.work.notify_all()
                self.gate.changed.notify_all()
        self.listener.count("duplicates", min(known, header.count))
        self.listener.count("samples", max(0, header.count - known))

    def _store(self, link: Link, payload: Buffer, row: int, count: int) -> None:
        """Commit the frame's samples from number `row` (from 0) on."""
        turn, inserter = self._intake

        def some(timeout: float) -> int:
            if timeout:
                inserter.wait_space(timeout)
            return self._commit(payload, row, min(count - row, TURN_ROWS), count)

        while row < count:
            self._patiently(link, turn.acquire)
            try:
                row += self._patiently(link, some)
            finally:
                turn.release()

    def _commit(self, payload: Buffer, row: int, most: int, count: int) -> int:
        session = self._session
        with session.lock:
            if session.owner is not self:
                raise ConnectionClosedError("replaced by a newer connection of the same client")
            done = self._intake.inserter.insert(payload, count, row, most)
            session.committed += done
            session.inserted += done
            self.peer.samples = session.inserted
        return done

    def _patiently(self, link: Link, attempt: Callable[[float], T | None]) -> T:
        """What `attempt(timeout)` gives, asked again for as long as the store may be full, the
        connection stands and nobody closes the learner."""
        if got := attempt(0):
            return got
        self._waiting_since = time.monotonic()
        told = logged = False
        try:
            while not (got := attempt(LOOK_UP_SECONDS if told else TELL_SECONDS)):
                if link.error is not None:
                    raise link.error
                if self._stopping:  # whoever closes the learner takes no more batches
                    raise ConnectionClosedError("the learner is closing")
                if not told:
                    told = True
                    with self.gate.lock:
                        self._ack_due = True  # of what came before, and of the frame's first samples
                        self.gate.work.notify_all()
                waited = time.monotonic() - self._waiting_since
                if not logged and waited >= LOG_AFTER:
                    logged = True
                    log.warning(
                        "worker %s waits for space: the learner has taken no batch for %.0f s",
                        self.peer.name,
                        waited,
                    )
            return got
        finally:
            self._waiting_since = 0.0

    # ------------------------------------------------------------------- weights and requests

    def _receipt(self, version: int, digest: int) -> None:
        with self.gate.lock:
            if version != self._on_the_way or self._chunks is not None:
                raise ProtocolError(f"receipt for weights {version}, which were not sent")
            self._held, self._on_the_way = version, 0
            self.gate.work.notify_all()
        self.peer.weights_version, self.peer.weights_digest = version, digest
        self._sink.receipt(self.peer, version, digest)

    def _control(self, link: Link, header: Header, payload: Buffer) -> None:
        if header.flags & REPLY:
            with self.gate.lock:
                self.calls.answered(header.seq, payload)
            return
        self._post(answer(self._answer, header.seq, payload))

    def _answer(self, op: str, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Blob]:
        return self._sink.control(self.peer, op, body, blob)

    def _acknowledgement(self) -> bytes:
        self._acknowledged = self._session.committed
        return frame(Kind.ACK, seq=self._acknowledged)

    def _post(self, data: bytes) -> None:
        assert self.link is not None
        with self.gate.lock:
            self.link.post(data)

    def _work(self) -> Work | None:
        """An acknowledgement if one is due, else the next chunk of weights."""
        if self._ack_due:
            self._ack_due = False
            return [self._acknowledgement()], 0
        newest = self.listener.newest
        if self._subscribed and not self._on_the_way and newest and newest.version > self._held:
            self._on_the_way = newest.version
            self._chunks = weights_frames(newest)
        if self._chunks is not None:
            chunk = next(self._chunks)
            # Known now: the receipt may be here before anybody looks for another chunk.
            if memoryview(chunk[0])[1] & LAST:  # the header's flags
                self._chunks = None
            return chunk, 0
        return None

    # --------------------------------------------------------------------- from other threads

    def throw_out(self) -> None:
        """End a handshake that keeps others waiting; before `decided`, under the listener's lock."""
        self._channel.shutdown()

    def refresh(self) -> None:
        """Bring `peer.state` up to date."""
        link = self.link
        if link is None:
            return
        if self._waiting_since:
            state, since = "waiting for space", self._waiting_since
        elif link.half_since:
            state, since = "half a message", link.half_since
        else:
            quiet_at = link.heard_at + STREAMING_SECONDS
            streaming = time.monotonic() < quiet_at
            state, since = ("streaming", link.heard_at) if streaming else ("idle", quiet_at)
        if state != self.peer.state:
            self.peer.state, self.peer.state_since = state, since
        self.peer.bytes = link.received

    def evict(self, timeout: float) -> None:
        """End the connection because its client has made another."""
        if self.link is not None:
            self.link.fail(
                ConnectionClosedError("replaced by a newer connection of the same client")
            )
        self.finished.wait(timeout)

    def stop(self, until: float) -> None:
        """Commit what has come whole as far as there is room, say goodbye, end; all of it before
        `until` (time.monotonic)."""

        def left() -> float:
            return max(0.0, until - time.monotonic())

        link = self.link
        try:
            with self.gate.lock, suppress(EchoTimeoutError):
                self._stopping = True
                begun = self._begun
                if begun:
                    assert link is not None
                    wait_until(
                        self.gate.changed, lambda: link.error is not None or not self._committing, left(), lambda: ""
                    )
                    if self._session.committed > self._acknowledged:  # or its client would send it to the next learner as well
                        link.post(self._acknowledgement())
                    link.post(frame(Kind.BYE, b"the learner is closing"))
                    with self.gate.watching():
                        wait_until(self.gate.changed, lambda: link.error is not None or link.idle(), left(), lambda: "")
        finally:
            self._parted.set()
        if begun:
            assert link is not None
            self.thread.join(min(left(), FAREWELL_SECONDS))
            link.fail(ConnectionClosedError("the learner is closing"))
        else:
            self._channel.shutdown()
        self.thread.join(left() + 2 * LOOK_UP_SECONDS)

"""One client as a channel listener serves it, on a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

from echo_core.base.errors import ClosedError, ConnectionClosedError, EchoError, EchoTimeoutError, ProtocolError
from echo_core.wire.later import Later
from echo_core.wire.peer import Peer
from echo_core.wire.protocol import LABELS, REPLY, TO_LEARNER, U64, WAITING, Blob, Buffer, Header, Kind, frame, weights_frames
from echo_core.wire.weights import PackedWeights

from ..handshake import ServerHandshake
from .acknowledgement import AcknowledgementsOwed
from .calls import answer
from .channel import Channel
from .holder import ChannelHolder
from .host import Host
from .link import BUFFER_BYTES, Gate, Link, Work, deadline, run_handshake, wait_until
from .sessions import Session
from .subscription import Subscription, WeightsOffer

__all__ = ["ServedClient"]

log = logging.getLogger("echo")

T = TypeVar("T")

LOOK_UP_SECONDS = 0.25  # while waiting for space: how soon an evicted client lets go
TELL_SECONDS = 0.01  # after so long a wait for space, the stored samples are acknowledged, so that the client can take new ones
FAREWELL_SECONDS = 1.0  # for a client to read the learner's goodbye and hang up
TURN_ROWS = 256  # samples of one client before the next client's turn
STREAMING_SECONDS = 1.0  # how long after its last byte a client still counts as streaming


class ServedClient:
    """A client from its first byte to its last, on a thread of its own.

    A frame of samples is received whole before a slot is claimed for any of them, so a client
    that stops in the middle of one holds nothing but its own memory.

    A transport may extend it (`ChannelListener.served`). The hooks are `read_frames`, `on_samples`, `on_request`, `answer_request` and
    `ended`, which the client's own thread calls without a lock; `offer_weights` and `fits`, which are called with `gate.lock` held and
    must not wait; and `refresh`, `evict` and `stop`, which other threads call. Each says what an override has to keep.

    Attributes:
        listener: the listener that serves the client.
        channel: the channel to the client.
        peer: the client as `server.peers()` shows it. Any thread may set its figures.
        sink: where the client's samples go. Once the handshake is done, this is the sink of the table that the client named.
        session: what the learner remembers of the client over its connections; set once the handshake is done. Change its counts with
            `session.lock` held.
        gate: the lock of the client, with the conditions `gate.work` (notify it when there is something to write) and `gate.changed`.
        link: the frames over the channel; None until the handshake is done.
        waiting_since: when samples of the client began to wait for space (`time.monotonic()`); 0.0 if none wait.
        weights_wanted_since: when a call of the client began to wait for weights (`time.monotonic()`); 0.0 if none waits.
        sampled_at: when samples of the client were stored last (`time.monotonic()`); 0.0 before the first.
        pinned: the weights that are being sent to the client, which keeps them in memory; None if none are.
        finished: an event that is set when the client's thread ends.
    """

    def __init__(self, listener: Host[ServedClient], channel: Channel) -> None:
        self.listener = listener
        self.channel = channel
        self.peer = Peer(id="", name="", address=channel.peer)
        self.gate = Gate()
        self.link: Link | None = None
        self.finished = threading.Event()
        self.thread = threading.Thread(target=self._run, name="echo-client", daemon=True)
        self.sink = listener.sink
        self.session: Session
        self.waiting_since = self.weights_wanted_since = self.sampled_at = 0.0
        self._holder = ChannelHolder(channel, self.peer)
        self.pinned: PackedWeights | None = None
        self._unread = False  # whether answers that the client has not read count in its memory
        self._parted = threading.Event()  # set when `stop` has sent the goodbye
        # Under the gate's lock.
        self._begun = False  # whether the client was told where to continue; it understands nothing else before
        self._committing = False
        self._stopping = False
        self._owed = AcknowledgementsOwed()
        self._subscription = Subscription()

    # --------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            if self._admit():
                try:
                    self._serve()
                finally:
                    self.ended()
        except Exception:
            log.exception("client %s", self.peer.address)
        finally:
            self._holder.release()
            self.finished.set()
            self.listener.gone(self)

    def _admit(self) -> bool:
        """The handshake; False if the client was turned away."""
        listener, sink = self.listener, self.sink
        handshake = None
        try:
            handshake = ServerHandshake(
                sink.spec, listener.tokens, sink.incarnation, tables=sink.tables, labels=sink.labels, silence=listener.options.silence, hold=True
            )
            with deadline(self.channel, listener.options.handshake_timeout, "a handshake"):
                reason = listener.cannot_serve()
                if reason:
                    # Its HELLO is read first: hanging up on unread bytes may destroy the answer.
                    self.channel.recv_into(memoryview(bytearray(8192)))
                    self.channel.send([handshake.refuse(*reason)])
                    raise ConnectionClosedError(reason[1])
                run_handshake(self.channel, handshake)
                self._introduce(handshake.peer)
                self._holder.claim(sink.identities, handshake)
                self.channel.send([handshake.accept()])
            if not listener.take_place(self):  # the client connects again, and is told the reason then
                raise ConnectionClosedError("others came first: max_connections clients are served")
        except (EchoError, OSError, RuntimeError) as error:  # RuntimeError: no more threads
            listener.decided(self)  # now nobody else touches the channel
            self.channel.shutdown()
            self.channel.close()
            listener.turned_away(self.peer.address, error)
            return False
        hello = handshake.peer
        try:
            self.sink = sink = sink.table(hello["table"])
        except EchoError as error:  # the server has just gone
            self.channel.shutdown()
            self.channel.close()
            listener.turned_away(self.peer.address, error)
            return False
        self._intake = listener.intake(sink)
        listener.count("connections_total")
        self.link = Link(
            self.channel,
            handshake.leftover,
            sink.spec.sample_bytes,
            TO_LEARNER,
            self.gate,
            self._work,
            listener.options.silence,
            min(listener.options.silence, hello["silence"]) / 3,
        )
        self._holder.link = self.link
        self.peer.memory = sink.client_memory.account(self.peer.name, self._cut_off, partial(getattr, self.link, "half_since"))
        # An observer has no samples, and cannot meddle with those of a worker whose id it knows.
        worker = self.peer.role == "worker"
        session = hello["session"] if worker else f"observer {hello['session']}"
        self.session = listener.sessions.open(session, hello["base"] if worker else 0, self)
        return True

    def _introduce(self, hello: Mapping[str, Any]) -> None:
        self.peer.address = self.channel.peer  # the channel may know more after its handshake
        self.peer.id, self.peer.name, self.peer.role = hello["client"], hello["name"], hello["role"]
        self.peer.table, self.peer.pid, self.peer.host = hello["table"], hello["pid"], hello["host"]
        self.peer.permissions = hello["permissions"]
        self.peer.connected_at, self.peer.state_since = time.time(), time.monotonic()

    def _serve(self) -> None:
        assert self.link is not None
        reason = ""
        self.sink.connected(self.peer)
        try:
            with self.gate.lock:
                if self._stopping:
                    raise ConnectionClosedError("the learner is closing")
                self.link.post(self._owed.frame(self.session.committed))
                self.link.start()
                self._begun = True
            self.read_frames(self.link)
        except ClosedError:
            pass  # the store is closed, because the learner is closing
        except ProtocolError as error:
            reason = f"it broke the protocol: {error}"
            self.listener.count("protocol_errors")
        except (EchoError, OSError) as error:
            reason = str(error)
            if not self._stopping:
                # A thread that stops this client now has nothing to wait for. The error itself is not passed on: its frames lead back here, and
                # what they hold would be left to the garbage collector. That may be objects of gRPC's, which must not go in a forked child.
                self.link.fail(ConnectionClosedError(reason))
        finally:
            with self.gate.lock:
                stopping = self._stopping
            if stopping:
                reason = ""
                self._parted.wait()
                self.link.drain()
            self.link.finish()
            self._subscription, self.pinned = Subscription(), None  # the weights that were on their way are freed now
            self.listener.sessions.release(self.session, self)
            self.sink.lost(self.peer, reason)

    def read_frames(self, link: Link) -> None:
        """A hook: read frames until BYE; returns when the client or the listener ends in order, and raises why the link was lost.

        An override calls this once, and may act before the first frame and after the last, while the session belongs to this client.
        """
        while not self._stopping:
            if link.crowded():
                self._until_read(link)
            header = link.read_header()
            if header.kind is Kind.DATA:
                with self._room_for(link, header.length):
                    self.on_samples(link, header)
            elif header.kind is Kind.CONTROL:
                # This does not wait for room: a learner's request may be what makes room in the store.
                with self.peer.memory.holding(header.length) if self.peer.memory and header.length >= BUFFER_BYTES else nullcontext():
                    payload = link.read(header.length)
                if not header.flags & REPLY:  # a learner sends no requests, so there are no answers
                    self.answer_request(header.seq, payload)
            elif header.kind is Kind.PING:
                if not header.flags & REPLY:
                    self._post(frame(Kind.PING, flags=REPLY, seq=header.seq))
            elif header.kind is Kind.SUBSCRIBE:
                self.weights_wanted_since = time.monotonic() if header.flags & WAITING else 0.0
                # After a change of learners, the number alone does not say which weights the client got by an earlier connection.
                held = 0 if self.listener.renumbered else header.seq
                self._has_weights(held)
                with self.gate.lock:
                    self._subscription.begin(held)
                    self.gate.work.notify_all()
            elif header.kind is Kind.RECEIPT:
                self._receipt(header.seq, U64.unpack(link.read(header.length))[0])
            else:
                link.read(header.length)
                return

    def _room_for(self, link: Link, length: int) -> AbstractContextManager[None]:
        """Reserves the memory of a frame. A large frame may have to wait for it."""
        account = self.peer.memory
        if account is None or length < BUFFER_BYTES:
            return nullcontext()
        return account.frame(length, lambda: self._stopping or link.error is not None, link.piece_bytes)

    def _cut_off(self) -> None:
        """End the connection, because it makes the learner hold too much memory. Another thread does this: the caller may hold locks of any client."""
        if (link := self.link) is not None:
            error = ConnectionClosedError("the learner held too much memory for this client")
            with suppress(RuntimeError):  # no more threads
                threading.Thread(target=link.fail, args=(error,), name="echo-cut-off", daemon=True).start()

    def ended(self) -> None:
        """A hook: the connection has ended, and the session may belong to a new connection. It is the last call of the client's thread. Does nothing here."""

    def _until_read(self, link: Link) -> None:
        """Wait until the client has read most of its answers. Raises why the link ended.

        Every PING and request is answered. Without this wait, the answers of a client that asks and never reads would fill the learner's
        memory. Only the learner waits: a worker always goes on reading, so the two ends never wait for each other.
        """
        with self.gate.lock, self.gate.watching():
            self.gate.changed.wait_for(lambda: link.error is not None or not link.crowded())
        if link.error is not None:
            raise link.ended()

    # ------------------------------------------------------------------------------ samples

    def on_samples(self, link: Link, header: Header) -> None:
        """A hook: the header of a DATA frame has come. Read its payload from `link`, and store its samples before returning.

        A transport whose samples do not travel on the channel raises ProtocolError.
        """
        if self.peer.role != "worker":
            raise ProtocolError(f"a client of the role {self.peer.role!r} sends no experience")
        labelled = bool(header.flags & LABELS)
        if labelled and not self._intake.inserter.labels:
            raise ProtocolError("samples with labels, which only replay tables take")
        payload = link.read(header.length)
        self.peer.bytes = link.received
        known = self.session.committed + 1 - header.seq  # samples of the frame that are stored already
        if known < 0:
            raise ProtocolError(
                f"samples {self.session.committed + 1} to {header.seq - 1} were never sent"
            )
        with self.gate.lock:
            if self._stopping:  # a sample that is stored after the goodbye is never acknowledged, and would go to the next learner as well
                raise ConnectionClosedError("the learner is closing")
            self._committing = True
        known = min(known, header.count)
        self.listener.count("duplicates", known)
        try:
            self._store(link, payload, known, header.count, labelled)
        finally:
            self.sampled_at = time.monotonic()
            with self.gate.lock:
                self._committing = False
                self._owed.frame_is_stored(header.flags)
                if self._owed.due:
                    self.gate.work.notify_all()
                self.gate.changed.notify_all()

    def _store(self, link: Link, payload: Buffer, row: int, count: int, labelled: bool) -> None:
        """Commit the frame's samples from number `row` (from 0) on, in turns of `TURN_ROWS`.

        A turn ends after a fixed number of samples, and not whenever the store is full. Otherwise its length would depend on the learner's
        speed, and one of two equal workers could store several times as many samples as the other. If other clients' turns are short, it
        ends earlier at a full store.
        """
        turn, inserter = self._intake

        def some(timeout: float) -> int:
            if timeout:
                inserter.wait_space(timeout)
            return self._commit(payload, row, end - row, count, labelled)

        while row < count:
            end, first = min(row + TURN_ROWS, count), row
            self._patiently(link, turn.acquire)
            try:
                while row < end:
                    if not (done := some(0)):
                        if row - first >= turn.share():
                            break
                        done = self._patiently(link, some)
                    row += done
            finally:
                turn.release(row - first)

    def _commit(self, payload: Buffer, row: int, most: int, count: int, labelled: bool) -> int:
        session = self.session
        with session.lock:
            if session.owner is not self:
                raise ConnectionClosedError("replaced by a newer connection of the same client")
            done = self._intake.inserter.insert(payload, count, row, most, labelled)
            # They are counted here, because the connection may end within the frame, and before they can be acknowledged: a worker that has the
            # acknowledgement finds them in the statistics.
            if done:
                self.listener.count("samples", done)
            session.committed += done
            session.inserted += done
            self.peer.samples = session.inserted
        return done

    def _patiently(self, link: Link, attempt: Callable[[float], T | None]) -> T:
        """Call `attempt(timeout)` until it returns something true. Raises if the connection or the
        learner ends first."""
        if got := attempt(0):
            return got
        self.waiting_since = time.monotonic()
        told = False
        try:
            if self._subscription.sent:
                with self.gate.lock:
                    self.gate.work.notify_all()  # for `_pass_weights`
            while not (got := attempt(LOOK_UP_SECONDS if told else TELL_SECONDS)):
                if link.error is not None:
                    raise link.ended()
                if self._stopping:  # a learner that closes takes no more batches
                    raise ConnectionClosedError("the learner is closing")
                if not told:
                    told = True
                    with self.gate.lock:
                        self._owed.store_is_full()
                        self.gate.work.notify_all()
            return got
        finally:
            self.waiting_since = 0.0

    # ------------------------------------------------------------------- weights and requests

    def offer_weights(self, held: int) -> WeightsOffer | None:
        """A hook: weights for a client that holds version `held`; None if there are no others (`holds`).

        Called by the thread that writes, with `gate.lock` held, when no version is on its way and nothing else is due: it must not wait.
        """
        newest = self.listener.newest
        if not newest or self.holds(newest.version, newest.digest):
            return None
        self.pinned = newest
        return WeightsOffer(newest.version, weights_frames(newest))

    def holds(self, version: int, digest: int) -> bool:
        """Whether the client has just these weights. Called with `gate.lock` held."""
        return self._subscription.holds(version, digest)

    def is_reading(self) -> bool:
        """Whether weights are on their way to the client. Any thread may ask, also with a lock that `offer_weights` takes."""
        return self._subscription.sent != 0

    def offer_weights_again(self) -> None:
        """Call `offer_weights` again, because the last offer will not be confirmed. Takes `gate.lock`."""
        with self.gate.lock:
            self._subscription.send_again()
            self.gate.work.notify_all()

    def fits(self, sent: int, version: int) -> bool:
        """A hook: whether a client to which version `sent` was offered may confirm `version`. Called with `gate.lock` held."""
        return version == sent

    def _has_weights(self, version: int) -> None:
        """The client has got this version by an earlier connection. A local variable of the thread that reads would keep the weights in memory."""
        newest = self.listener.newest
        if not self.peer.weights_version and newest is not None and version == newest.version:
            self.peer.weights_version, self.peer.weights_digest = version, newest.digest

    def _receipt(self, version: int, digest: int) -> None:
        with self.gate.lock:
            # Even if the client confirms another digest, it is not sent the same weights again and again.
            sent = self.pinned.digest if self.pinned is not None and self.pinned.version == version else digest
            if self._subscription.confirmed(version, sent, self.fits):
                self.pinned = None
                self.listener.count("weights_sent")
                self.gate.work.notify_all()
        self.peer.weights_version, self.peer.weights_digest = version, digest
        self.sink.receipt(self.peer, version, digest)

    def answer_request(self, number: int, payload: Buffer) -> None:
        """A hook: have the request with this number carried out, and post the answer before returning, unless the operation answers later."""
        answer(self.on_request, number, payload, self._post)

    def on_request(self, op: str, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Blob] | Later:
        """A hook: carry out one request, and return its answer, or a `Later`; an EchoError is reported to the client.

        An override carries out operations of its own, and leaves others to this one. Samples sent before the request are stored by then.
        """
        return self.sink.request(self.peer, op, body, blob)

    def _post(self, data: bytes) -> None:
        assert self.link is not None
        with self.gate.lock:
            self.link.post(data)
            if self.link.posted_bytes >= BUFFER_BYTES and self.peer.memory is not None:
                self._unread = True
                self.peer.memory.measured(self.link.posted_bytes)

    def _work(self) -> Work | None:
        """An acknowledgement if one is due, else the next frame of weights. Everything posted is written by then."""
        if self._unread and self.peer.memory is not None:
            self._unread = False
            self.peer.memory.measured(0)
        if self._owed.due:
            return [self._owed.frame(self.session.committed)], 0
        self._pass_weights()
        chunk = self._subscription.next_frame(self.offer_weights)
        return None if chunk is None else (chunk, 0)

    def _pass_weights(self) -> None:
        """While samples of the client wait for space, nothing that comes after them is read, and so no receipt either. Then a version that was
        written counts as received. If the client does not read, the channel fills, and takes no further version."""
        if self.waiting_since and self.pinned is not None and self._subscription.written == self.pinned.version:
            self._subscription.passed(self.pinned.digest)
            self.pinned = None
            self.listener.count("weights_sent")

    # --------------------------------------------------------------------- from other threads

    def throw_out(self) -> None:
        """End a handshake that keeps others waiting. Called before `decided`, with the listener's lock held."""
        self.channel.shutdown()

    def refresh(self) -> None:
        """A hook: bring the figures of `peer` up to date. Any thread may call it, without a lock; an override calls this first."""
        link = self.link
        if link is None:
            return
        self.peer.bytes = link.received
        if self.waiting_since:
            self.show("waiting for space", self.waiting_since)
        elif link.half_since:
            self.show("half a message", link.half_since)
        elif self.weights_wanted_since and time.monotonic() >= (quiet_at := self.sampled_at + STREAMING_SECONDS):
            self.show("waiting for weights", max(self.weights_wanted_since, quiet_at))
        else:
            heard_at = max(link.heard_at, self.sampled_at)
            quiet_at = heard_at + STREAMING_SECONDS
            streaming = time.monotonic() < quiet_at
            self.show("streaming" if streaming else "idle", heard_at if streaming else quiet_at)

    def show(self, state: str, since: float) -> None:
        """Set what `peer` is doing, and since when (`time.monotonic()`), unless it is set already."""
        if state != self.peer.state:
            self.peer.state, self.peer.state_since = state, since

    def evict(self, timeout: float) -> None:
        """A hook: end the connection because its client has made another. Wait up to `timeout` seconds until it no longer uses the session.

        Called by the thread of the client's new connection, without a lock. An override ends its own parts first.
        """
        if self.link is not None:
            self.link.fail(
                ConnectionClosedError("replaced by a newer connection of the same client")
            )
        self.finished.wait(timeout)

    def stop(self, until: float) -> None:
        """A hook: commit the complete samples for which there is room, say goodbye, and end, all before `until`
        (`time.monotonic()`).

        Called once, by a thread of its own, when the listener closes. An override that commits samples in other ways ends those first, so
        that the acknowledgement before the goodbye counts them.
        """

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
                    if self.session.committed > self._owed.told:  # otherwise the client would send them to the next learner as well
                        link.post(self._owed.frame(self.session.committed))
                    link.post(self.listener.farewell.frame())
                    with self.gate.watching():
                        wait_until(self.gate.changed, lambda: link.error is not None or link.idle(), left(), lambda: "")
        finally:
            self._parted.set()
        if begun:
            assert link is not None
            self.thread.join(min(left(), FAREWELL_SECONDS))
            link.fail(ConnectionClosedError(self.listener.farewell.text))
        else:
            self.channel.shutdown()
        self.thread.join(left() + 2 * LOOK_UP_SECONDS)

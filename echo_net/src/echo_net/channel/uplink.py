"""A worker's session with a learner: its state, and the thread that keeps it connected.

The thread dials, reads, and dials again; the link's own thread writes. Callers are in
`connection.py`: they put samples into the window and sleep until something has moved.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from echo_core.base.address import Address
from echo_core.base.errors import (
    ClosedError,
    ConnectionClosedError,
    EchoError,
    EchoTimeoutError,
    HandshakeRefused,
    JobEnded,
    NoThreadError,
    ProtocolError,
)
from echo_core.base.returned import returned
from echo_core.base.transport_options import ConnectOptions
from echo_core.base.waiting import CLOSE_LOG_AFTER, Wait, logged_after
from echo_core.spec.spec import Spec
from echo_core.wire.protocol import ENDED, REPLY, TO_WORKER, U64, WAITING, Buffer, Header, Kind, WeightsAssembler, frame, pack_error, reply_frame
from echo_core.wire.weights import learner_of, verify

from ..handshake import ClientHandshake
from ..network import unreachable
from ..network.broken_links import MOST, BrokenLinks
from ..network.redial_pauses import ATTEMPT_SECONDS, LEAST_SECONDS, LONGEST_PAUSE, redial_pauses
from .calls import Calls
from .channel import Channel
from .link import Gate, Link, Waitable, Work, deadline, run_handshake, wait_until
from .window import SampleWindow, Window

__all__ = ["Uplink"]

log = logging.getLogger("echo")

NAP_SECONDS = 0.25  # the longest sleep of a caller while rows of the window are lent


class Uplink:
    """One session, across reconnects. Everything but `over` is under `gate.lock`.

    A transport may extend it (`ChannelConnection.uplink_type`). The hooks are:

    * `on_connected`, `work`, `add`, `has_room`, `taken`, `under_way` and `connecting` are called with `gate.lock` held, and must not wait.
      `wait_progress` is called with the lock as well, and releases it while it sleeps, as `gate.changed.wait` does;
    * `dial`, `on_control` and `on_lost` are called by the uplink's own thread, without the lock;
    * `end`, `close` and `forget` are called by any thread, without the lock; an override also calls the method of this class;
    * `make_window` is called by the constructor. A subclass that overrides both sets what `make_window` needs before `super().__init__`.

    Attributes:
        address, spec, options: as the connection was given them.
        gate: the lock of the session, with the conditions `gate.work` (notify it when there is something to write) and `gate.changed`
            (notify it when anything has changed that a caller may wait for).
        over: an event that is set when there will be no further link.
        window: the samples that are not acknowledged.
        calls: the requests that are not answered.
        link: the connection, or None while there is none.
        trouble: why there is no connection now, or None.
        error: why there will never be a connection again, or None; `over` is set at the same time.
        end_is_told: whether a caller has got the error that says that the job has ended.
        closing: whether `close` was called, after which no samples are taken.
        restarts: how many restarts of the learner this session has seen.
        connects: how many links there were.
        takes_labels: whether samples may have labels, as the learner said in the handshake.
        parting: whether the goodbye was sent, so that the end of the link ends the session.
        weights: (version, description, payload, digest) of the newest weights that arrived whole, or None.
        weights_life: how often another learner has begun to number the weights, as far as the weights have shown it. Each learner counts
            versions anew. The server at the other end may be a relay, which only passes weights on.
    """

    def __init__(
        self,
        dial: Callable[[Address, Any, float], Channel],
        address: Address,
        spec: Spec,
        options: ConnectOptions,
    ) -> None:
        self.address = address
        self.gate = Gate()
        self.over = threading.Event()
        self.spec = spec
        self.options = options
        self.window = self.make_window()
        if options.role != "worker":
            self.window.stop()
        self.calls = Calls(self.gate)
        self.link: Link | None = None
        self.trouble: Exception | None = None
        self.error: EchoError | None = None
        self.end_is_told = False
        self.closing = False
        self.parting = False
        self.weights: tuple[int, bytes, np.ndarray, int] | None = None
        self.weights_life = 0
        self._numbered_by = ""  # the learner whose weights came last
        self.weights_received = 0
        self.restarts = 0  # of the learner
        self.connects = 0
        self._pauses, self._linked_at = redial_pauses(), 0.0
        self._sent_away = False  # whether the learner has ended the last link, and not the network
        self.takes_labels = False
        self._dial = dial
        self._client_id = options.client_id or secrets.token_hex(16)
        self._session = secrets.token_hex(16)  # see wire/identity.py
        self._incarnation = ""
        self._broken_links = BrokenLinks()
        self._last_kind = Kind.ACK  # of the last frame
        self._subscribed = False
        self._weights_waits = 0  # calls that wait for weights
        self._receipt = self._said = b""  # the frames that were posted last: a receipt, and what `_say_whether_it_waits` said
        self._dialled: Channel | None = None  # from dialling until the session goes on
        self._bytes = [0, 0]  # sent, received by the links before this one
        self._untold: EchoError | None = None  # what a close() that was interrupted could not say
        self._thread = threading.Thread(target=self._run, name="echo-uplink", daemon=True)
        self._thread.start()

    def make_window(self) -> SampleWindow:
        """A hook: what keeps the samples; a transport that sends them natively has its own."""
        options = self.options
        return Window(
            self.spec.flattener,
            options.window_bytes,
            options.max_inflight_msgs,
            options.max_coalesced_bytes,
        )

    def dial(self, seconds: float) -> Channel:
        """A hook: a channel to the learner, within `seconds`; as `ChannelTransport.dial`. An override may prepare the channel that it gets here."""
        if self.options.resolve is not None:
            wait = Wait(seconds)
            self.address = self.options.resolve(seconds)
            seconds = max(LEAST_SECONDS, wait.left())
        return returned(self._dial(self.address, self.options, seconds), Channel, f"{self.address}: dial()")

    # --------------------------- for callers: gate.lock held, but not for end(), close(), forget()

    def wait(self, ready: Callable[[], bool], seconds: float, waiting: Callable[[], str]) -> None:
        """Sleep until `ready()`. Raises the error that ended the session, or that of `gave_up` after `seconds`."""
        self.wait_on(self.gate.changed, ready, seconds, waiting, self._nap)

    def wait_on(
        self,
        condition: Waitable,
        ready: Callable[[], bool],
        seconds: float,
        waiting: Callable[[], str],
        nap: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """As `wait`, on another condition; for overrides of `wait_progress`."""
        try:
            wait_until(condition, lambda: ready() or self.over.is_set(), seconds, waiting, self.advice, nap)
        except EchoTimeoutError as error:
            raise self.gave_up(str(error)) from None
        if not ready():
            self.check()

    def gave_up(self, text: str) -> EchoError:
        """The error of a call that has waited for its whole timeout. Its type says whether there is a learner."""
        lost = self.connects > 0 and self.link is None
        return ConnectionClosedError(text) if lost else EchoTimeoutError(text)

    def _nap(self) -> float:
        """The longest sleep in seconds. The garbage collector may give a row back, which makes room but cannot notify: it must take no lock."""
        return NAP_SECONDS if self.window.lent() else math.inf

    def check(self) -> None:
        """Raise the error that ended the session, if there is one."""
        if self.error is not None:
            self.end_is_told |= isinstance(self.error, JobEnded)
            raise copy.copy(self.error)

    def subscribe(self) -> None:
        """Have the learner send weights from now on."""
        if not self._subscribed:
            self._subscribed = True
            if self.link is not None:
                self.link.post(frame(Kind.SUBSCRIBE))

    def wait_for_weights(self, ready: Callable[[], bool], seconds: float, waiting: Callable[[], str]) -> None:
        """`wait`, for weights. Meanwhile the learner knows that this worker waits for some."""
        if ready() or not seconds:
            return self.wait(ready, seconds, waiting)
        self._weights_waits += 1
        try:
            if self._weights_waits == 1:
                self._say_whether_it_waits()
            self.wait(ready, seconds, waiting)
        finally:
            self._weights_waits -= 1
            if not self._weights_waits:
                self._say_whether_it_waits()

    def _say_whether_it_waits(self) -> None:
        if self.link is not None:
            said = self._subscription(self.weights[0] if self.weights else 0)
            self.link.post(said, instead_of=self._said)
            self._said = said

    def _subscription(self, held: int) -> bytes:
        return frame(Kind.SUBSCRIBE, flags=WAITING if self._weights_waits else 0, seq=held)

    def add(self, count: int, data: bytes, labels: bytes | None) -> None:
        """A hook: put `count` samples into the window, as `SampleWindow.add`, and have them written."""
        self.window.add(count, data, labels)
        self.gate.work.notify_all()

    def has_room(self, count: int) -> bool:
        """A hook: whether `count` more samples can be taken over."""
        return self.window.has_room(count)

    def taken(self) -> int:
        """A hook: how many samples were taken over, in every way that the transport has."""
        return self.window.taken

    def under_way(self) -> int:
        """A hook: how many of them are not acknowledged. The number may fall at any time, and rises only when `taken` rises."""
        return self.window.taken - self.window.acknowledged

    def acknowledged(self) -> int:
        """How many of them are acknowledged, at least."""
        taken = self.taken()  # read first, because samples that are taken in between must not count as acknowledged
        return taken - self.under_way()

    def wait_progress(self, ready: Callable[[], bool], seconds: float, waiting: Callable[[], str]) -> None:
        """A hook: as `wait`, for conditions that acknowledgements make true. Override it if acknowledgements do not come as frames on the channel."""
        self.wait(ready, seconds, waiting)

    def learner(self) -> str:
        """A description of the learner and of the link to it, for messages."""
        now = "" if self.link is not None else f", not connected: {self.trouble or 'dialling'}"
        return f"the learner at {self.address} ({self.spec.counted(self.under_way())} unacknowledged{now})"

    def advice(self) -> str:
        """The advice of a message about a wait that has failed."""
        if self.link is None:
            return unreachable.advice(self.address, self.trouble)
        return f"see what it does (echoctl top {self.address}), or wait longer (timeout=)"

    def connecting(self) -> str:
        """A hook: a sentence for people that says which worker waits for which learner while there is no link yet."""
        trouble = f": {self.trouble}" if self.trouble else ""
        return f"{self.options.role} {os.getpid()} waits for a learner at {self.address}{trouble}"

    def bytes_sent(self) -> int:
        return self._bytes[0] + (self.link.sent if self.link else 0)

    def bytes_received(self) -> int:
        return self._bytes[1] + (self.link.received if self.link else 0)

    def end(self, error: EchoError) -> None:
        """End the session because of `error`, unless it has ended already. Any thread may call it."""
        with self.gate.lock:
            self.window.stop()  # first: a caller that has seen the error must not find a window that still takes samples
            self.error = self.error or error
            self.over.set()
            self.calls.fail(self.error)
            self.gate.changed.notify_all()
            link = self.link
            if self._dialled is not None:
                self._dialled.shutdown()
        if link is not None:
            link.fail(error)

    def leftovers(self) -> Sequence[tuple[int, Buffer, bool]]:
        """A hook: after `close`, the samples that are not acknowledged, as `Connection.leftovers` returns them."""
        return self.window.leftovers()

    def close(self, seconds: float) -> None:
        """Deliver, say goodbye and end, all within `seconds`. Only the first call does this; if it was interrupted, the next one reports the loss.

        Raises EchoTimeoutError or ConnectionClosedError if samples are not acknowledged; but not JobEnded, if a caller has got that already.
        """
        with self.gate.lock:
            if self.closing:
                untold, self._untold = self._untold, None
                if untold is not None:
                    raise untold
                return
            self.closing, end_is_told = True, self.end_is_told
            self.window.stop()
            self.calls.fail(ClosedError(f"this connection to {self.address} is closed"))
            self.gate.changed.notify_all()
        wait = Wait(seconds)
        why: EchoError | None = None
        told = False
        try:
            try:
                with self.gate.lock:
                    try:
                        with logged_after(CLOSE_LOG_AFTER):
                            self.wait_progress(
                                lambda: not self.under_way(),
                                seconds,
                                lambda: f"close() waits for {self.learner()} to acknowledge; Ctrl-C or close(timeout=) gives up, and loses them",
                            )
                    except EchoError as error:
                        why = error
                    self._say_goodbye(wait.farewell())
            finally:
                self.end(ClosedError(f"this connection to {self.address} is closed"))
                self._thread.join(wait.farewell())  # longer only inside a transport's dial()
            told = True
        finally:
            missing = self.under_way()
            if not told and missing:  # Ctrl-C
                self._untold = ConnectionClosedError(f"closed with {self.spec.counted(missing)} not acknowledged: close() was interrupted")
        if isinstance(why, JobEnded):
            if not end_is_told:
                raise why
        elif why is not None:
            kind = EchoTimeoutError if isinstance(why, EchoTimeoutError) else ConnectionClosedError
            raise kind(f"closed with {self.spec.counted(missing)} not acknowledged: {why}") from why

    def _say_goodbye(self, seconds: float) -> None:
        """BYE, and let the learner hang up first, so that it reads everything. Lock held."""
        link, self.parting = self.link, True
        if link is None or link.error is not None:
            return
        link.post(frame(Kind.BYE, b"closed"))
        with suppress(EchoTimeoutError):  # the learner does not read; it will see the end of the stream
            wait_until(self.gate.changed, lambda: self.link is not link, seconds, lambda: "")

    def forget(self) -> None:
        """In a forked child: close the copy of the channel without disturbing the parent's connection."""
        if self._dialled is not None:
            self._dialled.close()
        elif self.link is not None:
            self.link.forget()

    # ---------------------------------------------------------------------- the uplink's thread

    def _run(self) -> None:
        try:
            while not self.over.is_set() and (link := self._establish()) is not None:
                try:
                    self._read(link)
                except Exception as error:
                    self._lost(link, error)
                    if isinstance(error, JobEnded):
                        self._job_ended()
                    elif isinstance(error, ProtocolError):
                        self._broken(error)
                    elif not isinstance(error, OSError):
                        raise
                finally:
                    link.finish()
                if self.parting:
                    return  # close() says how it ended
                if not self.options.reconnect:
                    self.end(ConnectionClosedError(f"the learner is gone: {self.trouble}"))
        except Exception as error:
            log.exception("connection to %s", self.address)
            self.end(ConnectionClosedError(f"connection to {self.address} failed: {error!r}"))

    def _job_ended(self) -> None:
        """The learner has said that it does not come back."""
        with self.gate.lock:
            missing = self.under_way()
        self.end(JobEnded.at(self.address, missing, self.spec.counted(missing)))

    def _broken(self, error: ProtocolError) -> None:
        """The learner has broken the protocol. Ends the session if it would do so again; otherwise bytes may have been damaged on their way."""
        with self.gate.lock:
            weights = self._last_kind is Kind.WEIGHTS
            progress = self.weights_received + (0 if weights else self.acknowledged() + self.calls.answers)
        if not self.options.reconnect:
            self.end(error)
        elif self._broken_links.believed("weights" if weights else "messages", progress):
            self.end(ProtocolError(f"{error} (this ended {MOST} connections in a row)"))
        self._sent_away = True

    def _establish(self) -> Link | None:
        """Dial until a learner lets us in; None when the connection is over."""
        again = self.connects > 0  # at the first link, the caller of connect() limits the time
        start = time.monotonic()
        patience = self.options.timeout if again else math.inf
        if start - self._linked_at >= LONGEST_PAUSE:
            self._pauses = redial_pauses()
        elif self._sent_away:
            self.over.wait(next(self._pauses))
        self._sent_away = False
        verdict: EchoError | None = None
        while not self.over.is_set():
            left = max(LEAST_SECONDS, patience - (time.monotonic() - start))
            try:
                return self._attempt(min(left, ATTEMPT_SECONDS))
            except (EchoTimeoutError, ConnectionClosedError) as error:
                if isinstance(error, HandshakeRefused) and error.code == "ended" and again:
                    self._job_ended()
                    return None
                if isinstance(error, HandshakeRefused) and error.code not in ("busy", "shutdown", "ended"):
                    verdict = self._judged(error, verdict, again)
                self.trouble = error.with_traceback(None)
            except EchoError as error:  # another spec, token or protocol: another attempt cannot succeed
                verdict = self._judged(error, verdict, again)
                self.trouble = error.with_traceback(None)
            except OSError as error:
                self.trouble = error.with_traceback(None)
            if time.monotonic() - start >= patience:
                text = f"lost {self.learner()} and could not return within {patience:g} s; start the learner, and this {self.options.role} again"
                self.end(ConnectionClosedError(text))
            self.over.wait(min(next(self._pauses), left))
        return None

    def _judged(self, error: EchoError, before: EchoError | None, again: bool) -> EchoError:
        """End the connection for good because of `error`, a verdict about this worker or its learner.

        A connection that was served before believes a verdict when it comes a second time: one damaged byte can cause a single one.
        It waits while no thread can be started, because other programs may end meanwhile.
        """
        if not again or (type(error) is type(before) and not isinstance(error, NoThreadError)):
            self.end(error)
        return error

    def _attempt(self, seconds: float) -> Link:
        options = self.options
        handshake = ClientHandshake(
            self.spec,
            options.token,
            self._client_id,
            self.window.acknowledged,
            options.role,
            options.name,
            allow_unauthenticated=options.allow_unauthenticated,
            table=options.table,
            session=self._session,
            silence=options.silence,
            labels=self.takes_labels,
        )
        channel = self.dial(seconds)
        with self.gate.lock:
            self._dialled = channel  # from here on _end() can reach it
            if self.over.is_set():
                channel.shutdown()
        link: Link | None = None
        try:
            with deadline(channel, ATTEMPT_SECONDS, f"the handshake with {self.address}"):
                run_handshake(channel, handshake)
                self.takes_labels = handshake.peer["labels"]
                link = Link(
                    channel,
                    handshake.leftover,
                    self.spec.sample_bytes,
                    TO_WORKER,
                    self.gate,
                    self.work,
                    options.silence,
                    min(options.silence, handshake.peer["silence"]) / 3,
                )
                resume = link.read_header()
            self._resume(link, handshake.peer["server"], resume)
            return link
        except BaseException:
            with self.gate.lock:
                self._dialled = None
                if self.link is link:  # its writer could not be started
                    self.link = None
            link.finish() if link is not None else channel.close()
            raise

    def _resume(self, link: Link, incarnation: str, header: Header) -> None:
        """Continue after the last sample that the learner has."""
        if header.kind is not Kind.ACK:
            raise ProtocolError(f"the learner began with {header.kind.name} instead of ACK")
        with self.gate.lock:
            self.on_connected(link)
            self.window.resume(header.seq)
            restarted = self._incarnation not in ("", incarnation)
            self.restarts += restarted
            self.connects += 1
            self._linked_at = time.monotonic()
            self._incarnation = incarnation
            if self._subscribed:
                held = self.weights[0] if self.weights and not restarted else 0
                link.post(self._subscription(held))
            self.link, self._dialled, self.trouble = link, None, None
            self.gate.changed.notify_all()
            link.start()
        if self.connects > 1:
            what = "restarted learner" if restarted else "learner again"
            log.info("connected to the %s at %s", what, self.address)

    def on_connected(self, link: Link) -> None:
        """A hook: the handshake is done, and the window is about to resume. Frames that are posted here are sent before all others. Does nothing here."""

    def on_lost(self, link: Link) -> None:
        """A hook: `link` has ended, and another may follow. What arrived by `link` counts until this returns. Does nothing here."""

    def work(self) -> Work | None:
        """A hook: what to write next if nothing is posted, or None if there is nothing now."""
        return self.window.next_frame()

    def _read(self, link: Link) -> None:
        assembler = WeightsAssembler()
        while True:
            header = link.read_header()
            self._last_kind = header.kind
            if header.kind is Kind.ACK:
                with self.gate.lock:
                    self.window.acknowledge(header.seq)
                    self.gate.changed.notify_all()
            elif header.kind is Kind.WEIGHTS:
                whole = assembler.add(header, link.read(header.length))
                if whole is not None:
                    self.hold_weights(link, *whole)
            elif header.kind is Kind.CONTROL:
                self.on_control(link, header, link.read(header.length))
            elif header.kind is Kind.PING:
                if not header.flags & REPLY:
                    with self.gate.lock:
                        link.post(frame(Kind.PING, flags=REPLY, seq=header.seq))
            else:
                reason = bytes(link.read(header.length)).decode("utf-8", "replace")
                if header.flags & ENDED:
                    raise JobEnded(reason)
                self._sent_away = True
                raise ConnectionClosedError(f"the learner said goodbye: {reason}")

    def hold_weights(
        self,
        link: Link,
        version: int,
        meta: bytes,
        payload: np.ndarray,
        digest: int | None = None,
    ) -> None:
        """Keep weights that have arrived whole, and confirm them on `link`. Pass `digest` if it was verified already.

        For the uplink's own thread, without the lock.
        """
        digest = verify(meta, payload, version) if digest is None else digest
        numbered_by = learner_of(meta) or self._incarnation
        with self.gate.lock:
            self.weights_life += self._numbered_by not in ("", numbered_by)
            self._numbered_by = numbered_by
            self.weights = version, meta, payload, digest
            self.weights_received += 1
            # A learner whose store is full reads nothing, but goes on to send weights. Receipts for all of them would fill this end's memory.
            receipt = frame(Kind.RECEIPT, U64.pack(digest), seq=version)
            link.post(receipt, instead_of=self._receipt)
            self._receipt = receipt
            self.gate.changed.notify_all()

    def on_control(self, link: Link, header: Header, payload: Buffer) -> None:
        """A hook: a CONTROL frame has come: an answer (it has the flag REPLY), or a request of the learner, which is refused here.

        An override takes the frames that it knows by their numbers, which must be 1 << 60 or above, and leaves others to this one.
        """
        with self.gate.lock:
            if header.flags & REPLY:
                self.calls.answered(header.seq, payload)
            else:
                link.post(b"".join(reply_frame(header.seq, [pack_error(EchoError("this worker answers no requests"))])))

    def _lost(self, link: Link, error: Exception) -> None:
        self.on_lost(link)
        with self.gate.lock:
            self.link, self.trouble = None, error.with_traceback(None)  # whose frames would keep this uplink, and the window's memory
            self._bytes = [self._bytes[0] + link.sent, self._bytes[1] + link.received]
            if not isinstance(error, JobEnded):  # `end` tells them
                self.calls.fail(error)
                self.gate.changed.notify_all()
            over = self.over.is_set() or self.parting
        if isinstance(error, JobEnded):
            log.info("%s %d: the learner at %s has ended the job", self.options.role, os.getpid(), self.address)
        elif not over:
            log.warning("%s %d lost the learner at %s: %s", self.options.role, os.getpid(), self.address, error)

"""The worker's end of a channel transport: one session with a learner, across reconnects.

One thread connects, reads, and connects again; the link's thread writes; callers put samples
into the window and sleep until something has moved.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import random
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ..address import Address
from ..errors import (
    ClosedError,
    ConnectionClosedError,
    EchoError,
    EchoTimeoutError,
    ForkError,
    HandshakeRefused,
    ProtocolError,
    SpecError,
)
from ..handshake import ClientHandshake
from ..options import ConnectOptions
from ..spec import Spec
from ..transport import Connection
from ..weights import Weights, unpack
from ..wire import REPLY, TO_WORKER, U64, Header, Kind, WeightsAssembler, frame
from .base import Channel
from .calls import Calls, Handler, answer
from .link import Gate, Link, Work, deadline, run_handshake, wait_until
from .window import Window

__all__ = ["ChannelConnection"]

log = logging.getLogger("echo")

ATTEMPT_SECONDS = 10.0  # for one attempt to dial, and again for its handshake
BACKOFF = (0.05, 1.6, 1.0)  # seconds between attempts: first, factor, longest
FAREWELL_SECONDS = 1.0  # for the learner to read BYE and hang up

_connections: weakref.WeakSet[ChannelConnection] = weakref.WeakSet()


class ChannelConnection(Connection):
    """See `echo_core.transport.Connection`; made by `ChannelTransport.connect`.

    Attributes:
        on_request: answers requests of the learner, `(op, body, blob) -> (body, blob)`, each on
            a thread of its own; None refuses them.
    """

    on_request: Handler | None = None

    def __init__(
        self,
        dial: Callable[[Address, Any, float], Channel],
        address: Address,
        spec: Spec,
        options: ConnectOptions,
    ) -> None:
        self.address = address
        self.spec = spec
        self.options = options
        self.client_id = options.client_id or secrets.token_hex(16)
        self._dial = dial
        self._flattener = spec.flattener
        self._forked = False
        self._over = threading.Event()
        self._gate = Gate()
        # Everything below under the gate's lock.
        self._window = Window(
            [leaf.nbytes for leaf in spec.leaves], options.window_bytes, options.max_inflight_msgs
        )
        self._calls = Calls(self._gate)
        self._dialled: Channel | None = None  # between dialling and the first frame
        self._link: Link | None = None  # while connected
        self._trouble: Exception | None = None  # why it is not connected at present
        self._error: EchoError | None = None  # why it is over for good
        self._closing = False  # nothing more is taken over
        self._parting = False  # BYE is said: no reconnecting
        self._incarnation = ""
        self._subscribed = False
        self._weights: tuple[int, bytes, np.ndarray] | None = None
        self._connects = self._restarts = self._blocked = self._weights_received = 0
        self._bytes_sent = self._bytes_received = 0  # of the links before this one
        _connections.add(self)
        self._thread = threading.Thread(target=self._run, name="echo-connection", daemon=True)
        self._thread.start()
        try:
            with self._gate.lock:
                self._wait(lambda: self._link is not None, None, self._connecting)
        except BaseException:
            self._end(ClosedError("this connection was never made"))
            raise

    # ------------------------------------------------------------------------------ samples

    def send(self, sample: Any, timeout: float | None = None) -> None:
        self._check_alive()
        self._take(1, self._flattener.tobytes(sample), timeout)

    def send_batch(self, samples: Any, timeout: float | None = None) -> None:
        self._check_alive()
        count, data = self._flattener.batch_tobytes(samples)
        if count:
            self._take(count, data, timeout)

    def _take(self, count: int, data: bytes, timeout: float | None) -> None:
        with self._gate.lock:
            if not self._window.has_room(count):
                self._blocked += 1
                self._wait(
                    lambda: self._closing or self._window.has_room(count),
                    timeout,
                    lambda: f"send() waits for {self._learner()} to take the samples under way",
                )
            self._check_alive()
            self._window.add(count, data)
            self._gate.work.notify_all()

    def flush(self, timeout: float | None = None) -> None:
        self._check_alive()
        with self._gate.lock:
            target = self._window.taken

            def flushed() -> bool:
                written = self._link.written if self._link is not None else 0
                return max(written, self._window.acknowledged) >= target

            self._wait(flushed, timeout, lambda: f"flush() waits for {self._learner()} to read")

    def wait(self, timeout: float | None = None) -> None:
        self._check_alive()
        with self._gate.lock:
            target = self._window.taken
            self._wait(
                lambda: self._window.acknowledged >= target,
                timeout,
                lambda: f"wait() waits for {self._learner()} to acknowledge",
            )

    # ------------------------------------------------------------------- weights and requests

    def weights(
        self, timeout: float | None = None, newer_than: int | None = None, like: Any = None
    ) -> Weights:
        self._check_alive()
        with self._gate.lock:
            if not self._subscribed:
                self._subscribed = True
                if self._link is not None:
                    self._link.post(frame(Kind.SUBSCRIBE))

            def arrived() -> bool:
                if self._weights is None or newer_than is None:
                    return self._weights is not None
                version = self._weights[0]
                # A restarted learner counts from 1 again: there, another version is a newer one.
                return version > newer_than or (self._restarts > 0 and version != newer_than)

            newer = "" if newer_than is None else f" newer than {newer_than}"
            self._wait(
                arrived,
                timeout,
                lambda: f"weights() waits for {self._learner()} to publish a version{newer}",
            )
            assert self._weights is not None
            _, meta, payload = self._weights
        return unpack(meta, payload, like)

    def request(
        self, op: str, body: dict[str, Any], blob: bytes = b"", timeout: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        self._check_alive()
        seconds = self.options.timeout if timeout is None else timeout
        start = time.monotonic()
        with self._gate.lock:
            self._wait(lambda: self._link is not None, seconds, self._connecting)
            assert self._link is not None
            left = max(0.0, seconds - (time.monotonic() - start))
            return self._calls.ask(self._link, op, body, blob, left, self._learner())

    # --------------------------------------------------------------------- looking and waiting

    def stats(self) -> dict[str, Any]:
        with self._gate.lock:
            link = self._link
            return {
                "samples": self._window.taken,
                "acknowledged": self._window.acknowledged,
                "unacknowledged": self._window.taken - self._window.acknowledged,
                "bytes_sent": self._bytes_sent + (link.sent if link else 0),
                "bytes_received": self._bytes_received + (link.received if link else 0),
                "connected": link is not None,
                "reconnects": max(0, self._connects - 1),
                "learner_restarts": self._restarts,
                "send_blocked": self._blocked,
                "weights_version": self._weights[0] if self._weights else 0,
                "weights_received": self._weights_received,
            }

    def _check_alive(self) -> None:
        if self._forked:
            raise ForkError(
                f"this connection to {self.address} was made before the fork and its threads"
                " stayed in the parent; make a new Client in the child"
            )
        if self._error is not None:
            raise copy.copy(self._error)
        if self._closing:
            raise ClosedError(f"this connection to {self.address} is closed")

    def _wait(
        self, ready: Callable[[], bool], timeout: float | None, waiting: Callable[[], str]
    ) -> None:
        """Sleep until `ready()` or the connection is over, which is raised. Lock held."""
        seconds = self.options.timeout if timeout is None else timeout
        over = lambda: self._error is not None  # noqa: E731
        wait_until(self._gate.changed, lambda: ready() or over(), seconds, waiting)
        if self._error is not None and not ready():
            raise copy.copy(self._error)

    def _learner(self) -> str:
        """The learner as it is seen now, for texts that end in what it is to do. Lock held."""
        under_way = self._window.taken - self._window.acknowledged
        now = "" if self._link is not None else f", not connected: {self._trouble or 'dialling'}"
        return f"the learner at {self.address} ({under_way} samples unacknowledged{now})"

    def _connecting(self) -> str:
        trouble = f": {self._trouble}" if self._trouble else ""
        return f"worker {os.getpid()} waits for a learner at {self.address}{trouble}"

    # ------------------------------------------------------------------- the connecting thread

    def _run(self) -> None:
        try:
            while not self._over.is_set() and (link := self._establish()) is not None:
                try:
                    self._read(link)
                except OSError as error:
                    self._lost(link, error)
                    if isinstance(error, ProtocolError):
                        self._end(error)
                finally:
                    link.finish()
                if self._parting or not self.options.reconnect:
                    self._end(ConnectionClosedError(f"the learner is gone: {self._trouble}"))
        except Exception as error:
            log.exception("connection to %s", self.address)
            self._end(ConnectionClosedError(f"connection to {self.address} failed: {error!r}"))

    def _establish(self) -> Link | None:
        """Dial until a learner lets us in; None when the connection is over."""
        again = self._connects > 0  # the first time the caller of connect() keeps the time
        start = time.monotonic()
        patience = self.options.timeout if again else math.inf
        pause, factor, longest = BACKOFF
        while not self._over.is_set():
            left = max(0.1, patience - (time.monotonic() - start))
            try:
                return self._attempt(min(left, ATTEMPT_SECONDS))
            except (EchoTimeoutError, ConnectionClosedError) as error:
                if isinstance(error, HandshakeRefused) and error.code not in ("busy", "shutdown"):
                    self._end(error)
                self._trouble = error
            except EchoError as error:  # another spec, token or protocol: no use trying again
                self._end(error)
            except OSError as error:
                self._trouble = error
            if time.monotonic() - start >= patience:
                text = f"lost {self._learner()} and could not return within {patience:g} s"
                self._end(ConnectionClosedError(text))
            self._over.wait(pause * random.uniform(0.7, 1.3))  # a herd of workers spreads out
            pause = min(pause * factor, longest)
        return None

    def _attempt(self, seconds: float) -> Link:
        options = self.options
        handshake = ClientHandshake(
            self.spec,
            options.token,
            self.client_id,
            self._window.acknowledged,
            options.role,
            options.name,
            allow_unauthenticated=options.allow_unauthenticated,
        )
        channel = self._dial(self.address, options, seconds)
        with self._gate.lock:
            self._dialled = channel  # from here on _end() can reach it
            if self._over.is_set():
                channel.shutdown()
        link: Link | None = None
        try:
            with deadline(channel, ATTEMPT_SECONDS, f"the handshake with {self.address}"):
                run_handshake(channel, handshake)
                link = Link(
                    channel,
                    handshake.leftover,
                    self.spec.sample_bytes,
                    TO_WORKER,
                    self._gate,
                    self._work,
                )
                resume = link.read_header()
            self._resume(link, handshake.peer["server"], resume)
            return link
        except BaseException:
            with self._gate.lock:
                self._dialled = None
            link.finish() if link is not None else channel.close()
            raise

    def _resume(self, link: Link, incarnation: str, header: Header) -> None:
        """Go on where the learner says it is."""
        if header.kind is not Kind.ACK:
            raise ProtocolError(f"the learner began with {header.kind.name} instead of ACK")
        with self._gate.lock:
            self._window.resume(header.seq)
            restarted = self._incarnation not in ("", incarnation)
            self._restarts += restarted
            self._connects += 1
            self._incarnation = incarnation
            if self._subscribed:
                held = self._weights[0] if self._weights and not restarted else 0
                link.post(frame(Kind.SUBSCRIBE, seq=held))
            self._link, self._dialled, self._trouble = link, None, None
            self._gate.changed.notify_all()
            link.start()
        if self._connects > 1:
            what = "restarted learner" if restarted else "learner again"
            log.info("connected to the %s at %s", what, self.address)

    def _work(self) -> Work | None:
        entries = self._window.next_entries()
        return (self._window.encode(entries), entries[-1].last) if entries else None

    def _read(self, link: Link) -> None:
        assembler = WeightsAssembler()
        while True:
            header = link.read_header()
            if header.kind is Kind.ACK:
                with self._gate.lock:
                    self._window.acknowledge(header.seq)
                    self._gate.changed.notify_all()
            elif header.kind is Kind.WEIGHTS:
                whole = assembler.add(header, link.read(header.length))
                if whole is not None:
                    self._hold(link, *whole)
            elif header.kind is Kind.CONTROL:
                self._control(link, header, link.read(header.length))
            elif header.kind is Kind.PING:
                if not header.flags & REPLY:
                    with self._gate.lock:
                        link.post(frame(Kind.PING, flags=REPLY, seq=header.seq))
            else:
                reason = link.read(header.length).decode("utf-8", "replace")
                raise ConnectionClosedError(f"the learner said goodbye: {reason}")

    def _hold(self, link: Link, version: int, meta: bytes, payload: np.ndarray) -> None:
        digest = _digest(version, meta, payload)
        with self._gate.lock:
            self._weights = version, meta, payload
            self._weights_received += 1
            link.post(frame(Kind.RECEIPT, U64.pack(digest), seq=version))
            self._gate.changed.notify_all()

    def _control(self, link: Link, header: Header, payload: bytearray) -> None:
        if header.flags & REPLY:
            with self._gate.lock:
                self._calls.answered(header.seq, payload)
            return

        def handle() -> None:
            try:
                reply = answer(self.on_request or _refuse, payload)
            except ProtocolError as error:
                link.fail(error)
                return
            with self._gate.lock:
                link.post(frame(Kind.CONTROL, reply, flags=REPLY, seq=header.seq))

        threading.Thread(target=handle, name="echo-request", daemon=True).start()

    def _lost(self, link: Link, error: Exception) -> None:
        with self._gate.lock:
            self._link, self._trouble = None, error
            self._bytes_sent += link.sent
            self._bytes_received += link.received
            self._calls.fail(error)
            self._gate.changed.notify_all()
            over = self._over.is_set() or self._parting
        if not over:
            log.warning("worker %d lost the learner at %s: %s", os.getpid(), self.address, error)

    # ------------------------------------------------------------------------------- the end

    def _end(self, error: EchoError) -> None:
        """It is over, for this reason unless there was one before."""
        with self._gate.lock:
            self._error = self._error or error
            self._over.set()
            self._calls.fail(self._error)
            self._gate.changed.notify_all()
            link = self._link
            if self._dialled is not None:
                self._dialled.shutdown()
        if link is not None:
            link.fail(error)

    def close(self, timeout: float | None = None) -> None:
        if self._forked:
            return  # the parent's end; the copy of its channel was given back at the fork
        with self._gate.lock:
            if self._closing:
                return
            self._closing = True
            self._gate.changed.notify_all()
        why: EchoError | None = None
        try:
            with self._gate.lock:
                done = lambda: self._window.acknowledged == self._window.taken  # noqa: E731
                try:
                    self._wait(done, timeout, lambda: f"close() waits for {self._learner()}")
                except EchoError as error:
                    why = error
                self._say_goodbye(0.1 if timeout == 0 else FAREWELL_SECONDS)
        finally:
            self._end(ClosedError(f"this connection to {self.address} is closed"))
            self._thread.join(FAREWELL_SECONDS)  # longer only inside a transport's dial()
        if why is not None:
            kind = EchoTimeoutError if isinstance(why, EchoTimeoutError) else ConnectionClosedError
            missing = self._window.taken - self._window.acknowledged
            raise kind(f"closed with {missing} samples not acknowledged: {why}") from why

    def _say_goodbye(self, seconds: float) -> None:
        """BYE, and let the learner hang up first, so that it reads everything. Lock held."""
        link, self._parting = self._link, True
        if link is None or link.error is not None:
            return
        link.post(frame(Kind.BYE, b"closed"))
        try:
            wait_until(self._gate.changed, lambda: self._link is not link, seconds, lambda: "")
        except EchoTimeoutError:
            pass  # it does not read; it will see the end of the stream


def _digest(version: int, meta: bytes, payload: np.ndarray) -> int:
    """The digest of weights that have just arrived; ProtocolError unless it is the right one."""
    try:
        weights = unpack(meta, payload)
    except SpecError:  # its tree is not for us to build without `like`, but its digest is right
        description = json.loads(meta)
        return int(description["digest"], 16)
    if weights.version != version:
        raise ProtocolError(f"weights {weights.version} arrived as version {version}")
    return weights.digest


def _refuse(op: str, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    raise EchoError(f"this worker answers no requests, {op!r} neither")


def _after_fork() -> None:
    """In the child: the threads are gone, locks may be held for ever, the channel is shared."""
    for connection in list(_connections):
        connection._forked = True
        if connection._dialled is not None:
            connection._dialled.close()
        elif connection._link is not None:
            connection._link.forget()


os.register_at_fork(after_in_child=_after_fork)

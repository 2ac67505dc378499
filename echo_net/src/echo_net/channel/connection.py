"""The worker's end of a channel transport, as its callers see it."""

from __future__ import annotations

import atexit
import copy
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, ClassVar

from echo_core.base.address import Address
from echo_core.base.errors import (
    ClosedError,
    EchoError,
    EchoTimeoutError,
    ForkError,
    HandshakeRefused,
    JobEnded,
    SecurityError,
)
from echo_core.base.spare_threads import check_spare_threads
from echo_core.base.transport_options import ConnectOptions
from echo_core.spec.spec import Spec
from echo_core.wire.protocol import Buffer
from echo_core.wire.reservation import Reservation
from echo_core.wire.transport import Connection
from echo_core.wire.weights import PACKED, Weights, unpack

from ..gather import Row
from .calls import Question
from .channel import Channel
from .uplink import Uplink
from .window import Window

__all__ = ["ChannelConnection"]

ABANDONED_SECONDS = 1.0  # for delivering what a connection has that nobody closed

_open: weakref.WeakSet[ChannelConnection] = weakref.WeakSet()


class ChannelConnection(Connection):
    """See `echo_core.wire.transport.Connection`; made by `ChannelTransport.connect`.

    A transport may extend it: with another kind of session (`uplink_type`), and its own `send`, `send_batch`, `reserve`, `flush` and
    `stats`, which any thread may call. An override begins with `check`, which takes no lock: in a forked child a lock may be held for
    ever. `check_role`, `seconds`, `send_waiting` and `take` are for overrides; all are called without the lock.

    Attributes:
        uplink_type: the class of the session.
        threads: how many it needs: its reader, its writer, and the timer of a handshake.
        address, spec, options: what it was made with.
        uplink: the session. Its lock is `uplink.gate.lock`.
    """

    uplink_type: ClassVar[type[Uplink]] = Uplink
    threads: ClassVar[int] = 3

    def __init__(
        self,
        dial: Callable[[Address, Any, float], Channel],
        address: Address,
        spec: Spec,
        options: ConnectOptions,
    ) -> None:
        check_spare_threads(self.threads, f"a connection over {address.scheme}")
        self.address = address
        self.spec = spec
        self.options = options
        self._forked = False
        self._blocked = 0  # under the lock
        self._shown_life = -1  # whose weights a caller was given last, under the lock; -1: nobody's
        self.uplink = up = self.uplink_type(dial, address, spec, options)
        self._take_one = up.window.take
        self._lock = up.gate.lock
        try:
            with self._lock:
                up.wait(lambda: up.link is not None, options.connect_seconds, up.connecting)
        except BaseException as error:
            up.closing = True
            refusal = up.trouble
            up.end(ClosedError("this connection was never made"))
            if isinstance(error, EchoTimeoutError) and isinstance(refusal, HandshakeRefused):
                raise copy.copy(refusal) from error  # busy or closing all the time
            raise
        _open.add(self)

    # ------------------------------------------------------------------------------ samples

    @property
    def takes_labels(self) -> bool:
        return self.uplink.takes_labels

    def send(self, sample: Any, timeout: float | None = None, label: bytes | None = None) -> None:
        taken = self._take_one(sample) if label is None else self._take_one(sample, label)
        if taken != 1:
            self._wake() if taken else self.send_waiting(sample, timeout, label)

    def send_waiting(self, sample: Any, timeout: float | None, label: bytes | None) -> None:
        """`send` when the window did not take the sample at once: wait for room."""
        self.check()
        self.check_role()
        if not self.uplink.window.small:
            self.take(1, self.spec.flattener.tobytes(sample), timeout, label)
            return
        seconds, start = self.seconds(timeout), time.monotonic()
        taken = 0
        while not taken:
            with self._lock:
                left = max(0.0, seconds - (time.monotonic() - start))
                self._wait_for_room(1, left)
            taken = self._take_one(sample, label)  # without the lock: it may run the sample's code
        if taken == 2:
            self._wake()

    def _wake(self) -> None:
        with self._lock:
            self.uplink.gate.work.notify_all()

    def send_batch(self, samples: Any, timeout: float | None = None, labels: bytes | None = None) -> None:
        self.check()
        self.check_role()
        count, data = self.spec.flattener.batch_tobytes(samples)
        if count:
            self.take(count, data, timeout, labels)

    def take(self, count: int, data: bytes, timeout: float | None, labels: bytes | None) -> None:
        """Wait for room, then take `count` samples over; `data` holds each leaf's samples in turn."""
        with self._lock:
            self._wait_for_room(count, self.seconds(timeout))
            self.uplink.add(count, data, labels)

    def reserve(self, timeout: float | None = None, label: bytes | None = None) -> Reservation | None:
        """A sample's place in the window, in the message that it will be sent in."""
        self.check()
        self.check_role()
        with self._lock:
            self._wait_for_room(1, self.seconds(timeout), "reserve")
            window = self.uplink.window
            assert isinstance(window, Window)  # with another window this method is another, too
            return window.gatherer.reserve(self.spec, self, label)

    def commit_row(self, row: Row) -> None:
        """For `Row`: its sample is whole."""
        up = self.uplink
        try:
            self.check()  # without the lock first, which in a forked child may be held for ever
            with self._lock:
                self.check()
                if row.keep():
                    up.gate.work.notify_all()
        finally:
            row.give_back()  # unless it was kept

    def abort_row(self, row: Row) -> None:
        """For `Row`: there is no sample."""
        if self._forked:
            return  # it is the parent's
        with self._lock:
            row.give_back()
            self.uplink.gate.changed.notify_all()

    def _wait_for_room(self, count: int, seconds: float, who: str = "send") -> None:
        up = self.uplink
        if not up.has_room(count):
            self._blocked += 1
            up.wait_progress(
                lambda: up.closing or up.has_room(count),
                seconds,
                lambda: f"{who}() waits for {up.learner()} to take the samples under way{up.window.lent()}",
            )
        self.check()

    def flush(self, timeout: float | None = None) -> None:
        self.check()
        up = self.uplink
        with self._lock, up.gate.watching():
            target = up.window.taken

            def flushed() -> bool:
                written = up.link.written if up.link is not None else 0
                return max(written, up.window.acknowledged) >= target

            up.wait(
                flushed, self.seconds(timeout), lambda: f"flush() waits for {up.learner()} to read"
            )

    def wait(self, timeout: float | None = None) -> None:
        self.check()
        up = self.uplink
        with self._lock:
            target = up.taken()
            up.wait_progress(
                lambda: up.acknowledged() >= target,
                self.seconds(timeout),
                lambda: f"wait() waits for {up.learner()} to acknowledge",
            )

    # ------------------------------------------------------------------- weights and requests

    def weights(
        self, timeout: float | None = None, newer_than: int | None = None, like: Any = None
    ) -> Weights:
        self.check()
        up = self.uplink
        newer = "" if newer_than is None else f" newer than {newer_than}"

        def arrived() -> bool:
            if up.weights is None or newer_than is None:
                return up.weights is not None
            version = up.weights[0]
            # Another learner counts anew: then, another version is a newer one, and the same one is another unless it was shown.
            again = self._shown_life not in (-1, up.weights_life)
            return version > newer_than or again or (up.restarts + up.weights_life > 0 and version != newer_than)

        with self._lock:
            up.subscribe()
            wait = up.wait if like is PACKED else up.wait_for_weights  # a server that passes weights on waits all the time
            wait(
                arrived,
                self.seconds(timeout),
                lambda: f"weights() waits for {up.learner()} to publish a version{newer}",
            )
            assert up.weights is not None
            _, meta, payload, proven = up.weights
            self._shown_life = up.weights_life
        return unpack(meta, payload, like, proven=proven)

    def request(
        self, op: str, body: dict[str, Any], blob: bytes = b"", timeout: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        seconds, start = self.seconds(timeout), time.monotonic()
        question = self._ask(op, body, blob, seconds)
        body, answer = question(max(0.0, seconds - (time.monotonic() - start)))
        return body, bytes(answer)

    def ask(self, op: str, body: dict[str, Any], blob: bytes = b"") -> Question:
        return self._ask(op, body, blob, self.seconds(None))

    def _ask(self, op: str, body: dict[str, Any], blob: bytes, seconds: float) -> Question:
        self.check()
        up = self.uplink
        with self._lock:
            up.wait(lambda: up.link is not None, seconds, up.connecting)
            assert up.link is not None
            return Question(up.calls, up.calls.ask(up.link, op, body, blob), partial(self._answer, op))

    def _answer(self, op: str, number: int, timeout: float | None) -> tuple[dict[str, Any], memoryview]:
        self.check()
        with self._lock:
            try:
                return self.uplink.calls.wait(number, op, self.seconds(timeout), self.uplink.learner())
            except JobEnded:
                self.uplink.end_is_told = True
                raise

    # -------------------------------------------------------------------- looking, and the end

    def stats(self) -> dict[str, Any]:
        if self._forked:
            self.check()
        up = self.uplink
        with self._lock:
            taken, under_way = up.taken(), up.under_way()
            return {
                "samples": taken,
                "acknowledged": taken - under_way,
                "unacknowledged": under_way,
                "bytes_sent": up.bytes_sent(),
                "bytes_received": up.bytes_received(),
                "connected": up.link is not None,
                "reconnects": max(0, up.connects - 1),
                "learner_restarts": up.restarts,
                "send_blocked": self._blocked,
                "weights_version": up.weights[0] if up.weights else 0,
                "weights_received": up.weights_received,
            }

    @property
    def ended(self) -> bool:
        return isinstance(self.uplink.error, JobEnded)

    def close(self, timeout: float | None = None) -> None:
        if self._forked:
            return  # it is the parent's; the copy of its channel was given back at the fork
        seconds = self.seconds(timeout)
        _open.discard(self)
        self.uplink.close(seconds)

    def leftovers(self) -> Sequence[tuple[int, Buffer, bool]]:
        with self._lock:
            return self.uplink.leftovers()

    def check(self) -> None:
        """Raise why no call can succeed: a fork, the end of the session, `close`."""
        if self._forked:
            raise ForkError(
                f"this connection to {self.address} was made before the fork and its threads"
                " stayed in the parent; make a new Client in the child"
            )
        if self.uplink.closing:
            raise ClosedError(f"this connection to {self.address} is closed")
        self.uplink.check()

    def check_role(self) -> None:
        """Raise SecurityError unless this is a worker's connection."""
        if self.options.role != "worker":
            raise SecurityError(
                f"this connection has the role {self.options.role!r}, which sends no experience;"
                " connect without role=..."
            )

    def seconds(self, timeout: float | None) -> float:
        """The timeout of a call in seconds. Raises ValueError if `timeout` is invalid."""
        seconds: float = self.options.timeout if timeout is None else timeout
        if not seconds >= 0:
            raise ValueError(f"timeout must be at least 0 seconds, not {timeout!r}")
        return seconds

    def __del__(self) -> None:
        up = getattr(self, "uplink", None)
        if up is None or up.closing or self._forked:
            return
        # On a thread of its own: the garbage collector may run in one that holds the lock.
        with suppress(RuntimeError):  # there are no more threads, or the process ends, and the connection with it
            threading.Thread(target=_abandon, args=(up,), name="echo-abandoned", daemon=True).start()
        self._warn()  # last, as it raises where warnings are errors

    def _warn(self) -> None:
        warnings.warn(
            f"unclosed connection to {self.address}; call close(), or use it in a with statement",
            ResourceWarning,
            source=self,
            stacklevel=3,
        )


def _abandon(up: Uplink) -> None:
    with suppress(EchoError):
        up.close(ABANDONED_SECONDS)


def _after_fork() -> None:
    """In the child: the threads are gone, locks may be held for ever, the channel is shared."""
    for connection in list(_open):
        connection._forked = True
        connection.uplink.window.stop()
        connection.uplink.forget()
    _open.clear()


def _at_exit() -> None:
    with ExitStack() as every:  # all are closed, even if a warning is raised
        for connection in list(_open):
            every.callback(connection._warn)  # runs after `_abandon`, because it raises where warnings are errors
            every.callback(_abandon, connection.uplink)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)

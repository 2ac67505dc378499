"""The worker's end of TCP, as its callers see it."""

from __future__ import annotations

import atexit
import os
import socket
import warnings
import weakref
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from echo_core.base.errors import EchoError, SecurityError
from echo_core.base.spare_threads import check_spare_threads
from echo_core.wire.transport import Connection

from ._worker import Question, Worker
from .echo1 import check_sendable
from .uplink import Uplink

if TYPE_CHECKING:
    from echo_core.base.address import Address
    from echo_core.spec.spec import Spec
    from echo_core.wire.weights import Weights

    from .options import TcpConnectOptions

__all__ = ["TcpConnection"]

THREADS = 2  # of one connection: the engine's and the uplink's
ABANDONED_SECONDS = 1.0  # time to deliver the remaining samples of a connection that was dropped without close()


class TcpConnection(Connection):
    """See `echo_core.wire.transport.Connection`. Connects when it is made.

    An idle link sends each sample at once; a busy link gathers samples while others are in flight.
    Unacknowledged samples are kept, and sent again when a lost link is back. If the learner does
    not return within `options.timeout`, the connection ends.

    Raises:
        EchoTimeoutError: the learner could not be reached in time, with the last reason.
        SpecError, SecurityError, HandshakeRefused, ProtocolError: the learner refused; a SpecError names the leaf.
    """

    def __init__(self, address: Address, spec: Spec, options: TcpConnectOptions) -> None:
        check_spare_threads(THREADS, f"a connection over {address.scheme}")
        self.address = address
        self.spec = spec
        self.options = options
        if options.protocol == "echo1":
            check_sendable(spec)
        self._worker = worker = Worker(
            spec,
            options.name or f"{socket.gethostname()}:{os.getpid()}",
            str(replace(address, options={})),
            options.timeout,
            window_bytes=options.window_bytes,
            max_inflight_msgs=options.max_inflight_msgs,
            coalesced_bytes=options.max_coalesced_bytes,
            silence=options.silence,
            original=options.protocol == "echo1",
        )
        self._uplink = Uplink(worker, address, spec, options)
        try:
            self._uplink.start()
        except BaseException:
            self._end(0.0)
            raise
        # Bound once, because a method in between would cost a third of a small send.
        if options.role == "worker":
            self.send = worker.send  # type: ignore[method-assign]
            self.send_batch = worker.send_batch  # type: ignore[method-assign]
        _open.add(self)

    @property
    def takes_labels(self) -> bool:
        return self._uplink.takes_labels

    def send(self, sample: Any, timeout: float | None = None, label: bytes | None = None) -> None:
        self._check_role()
        self._worker.send(sample, timeout, label)

    def send_batch(self, samples: Any, timeout: float | None = None, labels: bytes | None = None) -> None:
        self._check_role()
        self._worker.send_batch(samples, timeout, labels)

    def _check_role(self) -> None:
        if self.options.role != "worker":
            raise SecurityError(
                f"this connection has the role {self.options.role!r}, which sends no experience;"
                " connect without role=..."
            )

    def flush(self, timeout: float | None = None) -> None:
        self._worker.flush(timeout)

    def wait(self, timeout: float | None = None) -> None:
        self._worker.wait(timeout)

    def weights(
        self, timeout: float | None = None, newer_than: int | None = None, like: Any = None
    ) -> Weights:
        return self._worker.weights(timeout, newer_than, like)

    def ask(self, op: str, body: dict[str, Any], blob: bytes = b"") -> Question:
        return self._worker.ask(op, body, blob)

    def request(
        self, op: str, body: dict[str, Any], blob: bytes = b"", timeout: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        return self._worker.request(op, body, blob, timeout)

    def stats(self) -> dict[str, Any]:
        """The counters of every connection, and also: bytes_received, frames_sent, window_bytes_used,
        blocked_seconds, weights_received, ack_rtt_p50_ns and ack_rtt_p99_ns (time from handing a
        frame to the network until its acknowledgement)."""
        stats: dict[str, Any] = self._worker.stats()
        return stats

    @property
    def ended(self) -> bool:
        return self._worker.job_ended

    def close(self, timeout: float | None = None) -> None:
        try:
            self._worker.close(timeout)
        finally:
            if not self._worker.forked:
                self._uplink.stop()
                _open.discard(self)

    def leftovers(self) -> list[tuple[int, bytes, bool]]:
        return self._worker.leftovers()

    def _end(self, timeout: float) -> None:
        try:
            self.close(timeout)
        except EchoError:
            pass

    def __del__(self) -> None:
        worker = getattr(self, "_worker", None)
        if worker is None or worker.is_closed:
            return
        self._end(ABANDONED_SECONDS)
        warnings.warn(  # comes last, because it raises where warnings are errors
            f"unclosed connection to {self.address}; call close(), or use it in a with statement",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )


_open: weakref.WeakSet[TcpConnection] = weakref.WeakSet()


def _at_exit() -> None:
    with ExitStack() as every:  # all are closed, even if one of them raises
        for connection in list(_open):
            every.callback(connection.__del__)


atexit.register(_at_exit)

"""Adds to the error of a worker's wait what the learner says about the reason, such as a rate limiter and its figures.

A worker sees only that its samples are not acknowledged; the learner knows why. Requests of the worker's own connection wait behind its
samples, so that a short connection of an observer asks. The answer is kept for a while: workers that repeat short waits would otherwise
connect again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..base.errors import EchoError, EchoTimeoutError
from ..spec.spec import Spec
from ..wire.transport import Connection

if TYPE_CHECKING:
    from ..wire.protocol import Buffer
    from ..wire.reservation import Reservation
    from ..wire.transport import Pending
    from ..wire.weights import Weights

__all__ = ["ExplainedConnection", "Reasons"]

ASK_SECONDS, LEAST_ASK_SECONDS = 1.0, 0.25  # asking takes at most as long as the wait itself, within these bounds
KEPT_SECONDS = 5.0  # how long a reason is used again
SOON_SECONDS = 1.0  # how long until the learner is asked again if it takes samples, or if it did not answer: both change soon


class Reasons:
    """What the learner says about why it takes no samples. Thread-safe; one for all connections of a client.

    Args:
        connect: makes a connection to the learner, as `Transport.connect` does.
        spec: of the client; an observer needs one to connect.
        timeout: seconds: the default of the client's waits.
    """

    def __init__(self, connect: Callable[..., Connection], spec: Spec, timeout: float) -> None:
        self._connect, self._spec, self._timeout = connect, spec, timeout
        self._lock = threading.Lock()
        self._answers: dict[str | None, tuple[str, float, float]] = {}  # by table: the reason, when it was given, and until when it is kept

    def add_to(self, error: EchoTimeoutError, table: str | None, timeout: float | None) -> None:
        """Add the reason to the error of a wait for this table. A wait that may take no time gets only an answer that is already here."""
        seconds = self._timeout if timeout is None else timeout
        if why := self._why(table, min(max(seconds, LEAST_ASK_SECONDS), ASK_SECONDS) if seconds else 0.0):
            error.args = (f"{error} ({why})",)

    def _why(self, table: str | None, seconds: float) -> str:
        if not self._lock.acquire(timeout=seconds):
            return ""  # another thread is asking, and takes long
        try:
            reason, at, until = self._answers.get(table, ("", 0.0, 0.0))
            if time.monotonic() >= until:
                if not seconds:
                    return ""
                answer = self._ask(table, seconds)
                reason, at = answer or "", time.monotonic()
                self._answers[table] = reason, at, at + (KEPT_SECONDS if answer else SOON_SECONDS)
        finally:
            self._lock.release()
        age = time.monotonic() - at
        return reason and (f"the learner says: {reason}" if age < 1 else f"the learner said {age:.0f} s ago: {reason}")

    def _ask(self, table: str | None, seconds: float) -> str | None:
        """What the learner says now: "" if it takes samples. None if there was no answer in time."""
        end = time.monotonic() + seconds
        try:
            asking = self._connect(self._spec, role="observer", client_id="", name="a waiting worker", timeout=seconds)
            try:
                body = {} if table is None else {"table": table}
                return str(asking.request("blocked", body, b"", max(0.0, end - time.monotonic()))[0]["why"])
            finally:
                asking.close(0)
        except (EchoError, OSError, KeyError):  # KeyError: an answer of another release
            return None


class ExplainedConnection(Connection):
    """A worker's connection whose errors say why the learner takes no samples.

    Args:
        raw: the connection.
        reasons: of the client.
        table: the name of the table that gets its samples; None is the server's first table, or its stream.
    """

    def __init__(self, raw: Connection, reasons: Reasons, table: str | None) -> None:
        self.raw = raw
        self._reasons, self._table = reasons, table

    def explain(self, error: EchoTimeoutError, timeout: float | None) -> None:
        """Add the reason to an error of `raw`."""
        self._reasons.add_to(error, self._table, timeout)

    @property
    def takes_labels(self) -> bool:
        return self.raw.takes_labels

    def send(self, sample: Any, timeout: float | None = None, label: bytes | None = None) -> None:
        try:
            self.raw.send(sample, timeout) if label is None else self.raw.send(sample, timeout, label)
        except EchoTimeoutError as error:
            self.explain(error, timeout)
            raise

    def send_batch(self, samples: Any, timeout: float | None = None, labels: bytes | None = None) -> None:
        try:
            self.raw.send_batch(samples, timeout) if labels is None else self.raw.send_batch(samples, timeout, labels)
        except EchoTimeoutError as error:
            self.explain(error, timeout)
            raise

    def reserve(self, timeout: float | None = None, label: bytes | None = None) -> Reservation | None:
        try:
            return self.raw.reserve(timeout) if label is None else self.raw.reserve(timeout, label)
        except EchoTimeoutError as error:
            self.explain(error, timeout)
            raise

    def flush(self, timeout: float | None = None) -> None:
        try:
            self.raw.flush(timeout)
        except EchoTimeoutError as error:
            self.explain(error, timeout)
            raise

    def wait(self, timeout: float | None = None) -> None:
        try:
            self.raw.wait(timeout)
        except EchoTimeoutError as error:
            self.explain(error, timeout)
            raise

    def close(self, timeout: float | None = None) -> None:
        try:
            self.raw.close(timeout)
        except EchoTimeoutError as error:
            self.explain(error, timeout)
            raise

    def request(self, op: str, body: dict[str, Any], blob: bytes = b"", timeout: float | None = None) -> tuple[dict[str, Any], bytes]:
        try:
            return self.raw.request(op, body, blob, timeout)
        except EchoTimeoutError as error:
            self._explain_request(error, timeout)
            raise

    def ask(self, op: str, body: dict[str, Any], blob: bytes = b"") -> Pending:
        pending = self.raw.ask(op, body, blob)

        def answer(timeout: float | None = None) -> tuple[dict[str, Any], Buffer]:
            try:
                return pending(timeout)
            except EchoTimeoutError as error:
                self._explain_request(error, timeout)
                raise

        return answer

    def _explain_request(self, error: EchoTimeoutError, timeout: float | None) -> None:
        if self.raw.stats()["unacknowledged"]:  # the request waits behind samples
            self.explain(error, timeout)

    def weights(self, timeout: float | None = None, newer_than: int | None = None, like: Any = None) -> Weights:
        return self.raw.weights(timeout, newer_than, like)

    def stats(self) -> dict[str, Any]:
        return self.raw.stats()

    def leftovers(self) -> Sequence[tuple[int, Buffer, bool]]:
        return self.raw.leftovers()

    @property
    def ended(self) -> bool:
        return self.raw.ended

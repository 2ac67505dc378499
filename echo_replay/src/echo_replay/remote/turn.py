"""A request that may wait at its table until its turn comes: a draw or an insert. The other end is server/requests/waiting_line.py."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from echo_core.base import waiting
from echo_core.base.errors import ConnectionClosedError, EchoError, EchoTimeoutError
from echo_core.wire.blobs import MAX_BYTES

from .asking_again import FINAL, LEAST_SECONDS, check_not_carried_out, come_back, numbers, patience

if TYPE_CHECKING:
    from echo_core.client.requests import Requests
    from echo_core.wire.protocol import Buffer
    from echo_core.wire.transport import Pending

__all__ = ["Turn"]

_log = logging.getLogger("echo")

FIRST = 0.8  # of waiting.LOG_AFTER: then the server says why the request waits, before its connection would log that it waits
DAY = 86_400.0  # seconds; a request that waits for longer is sent again
WITHDRAW_SECONDS = 0.05  # Ctrl-C must be answered at once


class Turn:
    """One request. `begin` sends it, and `wait` waits for its answer until `timeout` seconds after this object was made. The request waits at the
    server all the time, in the order in which requests came there. When the server has said why it waits, it is sent once more, and keeps its place.

    Args:
        number: of a request that was sent before without waiting; by default a new one.
        again: it was sent, and the connection was lost since then.
    """

    def __init__(
        self, requests: Requests, op: str, body: dict[str, Any], blob: Buffer, timeout: float, number: int | None = None, again: bool = False
    ) -> None:
        self._requests, self._op, self._body, self._blob, self._timeout = requests, op, body, blob, timeout
        self._number = next(numbers) if number is None else number
        self._wait = waiting.Wait(timeout)
        self._told = False
        self._again = again
        self._pending: Pending | None = None  # what `begin` has sent

    def begin(self) -> None:
        """Send the request now. Without this call, `wait` sends it. Raises ConnectionClosedError, ClosedError and JobEnded."""
        self._pending = self._send(max(0.0, self._timeout))

    def wait(self, comes_back: bool = True) -> tuple[dict[str, Any], Buffer]:
        """The answer.

        Args:
            comes_back: False raises ConnectionClosedError at once if the connection is lost. Otherwise this waits until it stands again, and sends
                the request again.

        Raises:
            EchoTimeoutError: the table could not serve the request in time; the text has the server's reason. ConnectionClosedError: the
                connection was lost and did not return in time, or the answer was lost with it, and with the answer keys of inserted items or items
                that are drawn only a few times. ClosedError: the server or the client is closed. JobEnded: the learner
                has ended the job.
        """
        if self._again:
            come_back(self._requests, f"{self._op}() was sent", self._wait)
        left = max(0.0, self._timeout)
        while True:
            try:
                body, blob = self._asked(left)
            except ConnectionClosedError as error:
                if isinstance(error, FINAL) or not comes_back or not self._wait.left():  # an end closed the connection; otherwise it was lost
                    raise
                come_back(self._requests, f"{self._op}() waited at its table", self._wait)
                self._again = True  # the request begins anew, at the end of the line
                left = self._wait.left()
                continue
            except BaseException as error:
                if not isinstance(error, EchoError) or isinstance(error, EchoTimeoutError):  # Ctrl-C, or a server that does not answer
                    self.withdraw()
                raise
            check_not_carried_out(self._op, body)
            reason = body.get("wait")
            if reason is None:
                return body, blob
            left = self._wait.left()
            if not left:
                late = EchoTimeoutError(f"{self._op}() waited {waiting.shown(self._timeout)} s: {reason}")
                late.waits_for = str(reason)
                raise late
            if not self._told:
                self._told = True
                _log.warning("%s() has waited %.0f s: %s", self._op, self._wait.passed(), reason)

    def _asked(self, left: float) -> tuple[dict[str, Any], Buffer]:
        """Send the request, unless `begin` has done it, and wait for the answer: `left` seconds at the table at most."""
        pending, self._pending = self._pending, None
        if pending is not None:
            return pending(max(0.0, self._timeout + LEAST_SECONDS - self._wait.passed()))
        pending = self._send(left)
        if not self._told:
            return pending(left + LEAST_SECONDS)
        with waiting.unlogged():
            return pending(left + LEAST_SECONDS)

    def _send(self, left: float) -> Pending:
        here = min(left, DAY if self._told else FIRST * waiting.LOG_AFTER)
        body, blob = {**self._body, "number": self._number, "patience": here, "timeout": min(left, DAY)}, self._blob
        if self._again:
            body["again"] = True
        if len(blob) > MAX_BYTES:
            body, blob = body | self._requests.upload(blob, patience(left)), b""
        return self._requests.ask(self._op, body, blob)

    def withdraw(self) -> None:
        """Nobody waits for the answer any more. An answer that is on the way is lost."""
        self._pending = None
        body = {"number": self._number, **({"table": self._body["table"]} if "table" in self._body else {})}
        with suppress(EchoError, OSError):
            self._requests.ask("withdraw", body)(WITHDRAW_SECONDS)

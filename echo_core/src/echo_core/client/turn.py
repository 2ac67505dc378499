"""A request that may wait at its table until its turn comes: a draw or an insert. The other end is server/requests/waiting_line.py."""

from __future__ import annotations

import itertools
import logging
import math
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..base import waiting
from ..base.errors import ClosedError, ConnectionClosedError, EchoError, EchoTimeoutError
from ..wire.blobs import MAX_BYTES

if TYPE_CHECKING:
    from ..wire.protocol import Buffer
    from .requests import Requests

__all__ = ["Turn", "patience"]

_log = logging.getLogger("echo")

LEAST_SECONDS = 1.0  # for an answer, beside the time that the request may wait
FIRST = 0.8  # of waiting.LOG_AFTER: then the server says why the request waits, before its connection would log that it waits
PAUSE = 0.05  # seconds until the next attempt to use a connection that was lost
ATTEMPTS = 3
DAY = 86_400.0  # seconds; a request that waits for longer is sent again
WITHDRAW_SECONDS = 0.05  # Ctrl-C must be answered at once

_numbers = itertools.count(secrets.randbits(40))  # another process that was given the same client_id must not use the same


class Turn:
    """One request. `wait` sends it, and waits for its answer for `timeout` seconds. The request waits at the server all the time, in the
    order in which requests came there. When the server has said why it waits, it is sent once more, and keeps its place.
    """

    def __init__(self, requests: Requests, op: str, body: dict[str, Any], blob: Buffer, timeout: float) -> None:
        self._requests, self._op, self._body, self._blob, self._timeout = requests, op, body, blob, timeout
        self._number = next(_numbers)
        self._began = time.monotonic()
        self._told = False
        self._again = False  # the connection was lost since it was sent

    def wait(self) -> tuple[dict[str, Any], Buffer]:
        """The answer.

        Raises:
            EchoTimeoutError: the table could not serve the request in time; the text has the server's reason. ConnectionClosedError: the
                connection was lost and did not return in time, or the answer was lost with it, and with the answer keys of inserted items or items
                that are drawn only a few times. ClosedError: the server or the client is closed.
        """
        left = max(0.0, self._timeout)
        while True:
            try:
                body, blob = self._asked(left)
            except ConnectionClosedError as error:
                if isinstance(error, ClosedError) or not self._left():  # an end closed the connection; otherwise it was lost
                    raise
                self._come_back()
                left = self._left()
                continue
            except BaseException as error:
                if not isinstance(error, EchoError) or isinstance(error, EchoTimeoutError):  # Ctrl-C, or a server that does not answer
                    self._withdraw()
                raise
            if "carried_out" in body:
                was = "was" if body["carried_out"] == "yes" else "may have been"
                raise ConnectionClosedError(f"{self._op}() {was} carried out, at least in part, and the answer was lost with the connection")
            reason = body.get("wait")
            if reason is None:
                return body, blob
            left = self._left()
            if not left:
                raise EchoTimeoutError(f"{self._op}() waited {self._timeout:g} s: {reason}")
            if not self._told:
                self._told = True
                _log.warning("%s() has waited %.0f s: %s", self._op, time.monotonic() - self._began, reason)

    def _left(self) -> float:
        return max(0.0, self._began + self._timeout - time.monotonic())

    def _asked(self, left: float) -> tuple[dict[str, Any], Buffer]:
        """Send the request, and wait for the answer: `left` seconds at the table at most."""
        here = min(left, DAY if self._told else FIRST * waiting.LOG_AFTER)
        body, blob = {**self._body, "number": self._number, "patience": here, "timeout": min(left, DAY)}, self._blob
        if self._again:
            body["again"] = True
        if len(blob) > MAX_BYTES:
            body, blob = body | self._requests.upload(blob, patience(left)), b""
        if not self._told:
            return self._requests.ask(self._op, body, blob)(left + LEAST_SECONDS)
        with waiting.unlogged():
            return self._requests.ask(self._op, body, blob)(left + LEAST_SECONDS)

    def _come_back(self) -> None:
        """The connection was lost: wait until it stands again. Then the request begins anew, at the end of the line."""
        self._again = True
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._requests.request("ping", {}, timeout=patience(self._left()))
                return
            except ConnectionClosedError as error:
                if isinstance(error, ClosedError):
                    raise
                if attempt == ATTEMPTS or not self._left():
                    raise ConnectionClosedError(f"{self._op}() waited at its table, and the connection was lost: {error}") from error
                time.sleep(min(PAUSE, self._left()))

    def _withdraw(self) -> None:
        """Nobody waits for the answer any more. An answer that is on the way is lost."""
        body = {"number": self._number, **({"table": self._body["table"]} if "table" in self._body else {})}
        with suppress(EchoError, OSError):
            self._requests.ask("withdraw", body)(WITHDRAW_SECONDS)


def patience(timeout: float | None) -> float | None:
    """Seconds to wait for an answer: a request with timeout 0 still needs time for its answer. None is the connection's default."""
    return None if timeout is None or timeout == math.inf else max(LEAST_SECONDS, timeout)

"""Asks again if the connection was lost before an answer came: waits until it stands again, and knows which requests may be sent twice."""

from __future__ import annotations

import itertools
import math
import secrets
import time
from typing import TYPE_CHECKING, Any

from echo_core.base.errors import ClosedError, ConnectionClosedError, JobEnded
from echo_core.base.waiting import Wait

if TYPE_CHECKING:
    from echo_core.client.requests import Requests
    from echo_core.wire.protocol import Buffer

__all__ = ["FINAL", "LEAST_SECONDS", "ask", "check_not_carried_out", "come_back", "numbers", "patience"]

FINAL = (ClosedError, JobEnded)  # the ConnectionClosedErrors after which no connection is made again
LEAST_SECONDS = 1.0  # for an answer, beside the time that the request may wait
PAUSE = 0.05  # seconds until the next attempt to use a connection that was lost
ATTEMPTS = 3  # without a connection between them

numbers = itertools.count(secrets.randbits(40))  # another process that was given the same client_id must not use the same


def ask(requests: Requests, op: str, body: dict[str, Any], blob: Buffer, timeout: float, counts: bool = False) -> tuple[dict[str, Any], Buffer]:
    """The answer to a request that has the same effect if it is carried out twice: one that looks, sets values by key, or ends items by key.

    Args:
        timeout: seconds for all attempts together.
        counts: the answer says how many items the request has ended. The server remembers it, because a repeated request ends none.

    Raises:
        ConnectionClosedError: the connection was lost and did not return in time, or the server has forgotten such an answer. ClosedError: the
            server or the client is closed. JobEnded: the learner has ended the job. EchoTimeoutError: the server did not answer in time.
    """
    wait = Wait(timeout)
    if counts:
        body = body | {"number": next(numbers)}
    while True:
        try:
            answer = requests.ask(op, body, blob)(patience(wait.left()))
        except ConnectionClosedError as error:
            if isinstance(error, FINAL) or not wait.left():  # an end closed the connection; otherwise it was lost
                raise
            come_back(requests, f"request {op!r} waited for its answer", wait)
            body = body | {"again": True}
            continue
        check_not_carried_out(op, answer[0])
        return answer


def come_back(requests: Requests, what: str, wait: Wait) -> None:
    """The connection was lost: wait until it stands again.

    Raises:
        ConnectionClosedError: it does not stand in time; the text begins with `what`. ClosedError, JobEnded: an end has closed it.
    """
    attempts, reconnects = 0, requests.reconnects()
    while True:
        try:
            requests.request("ping", {}, timeout=patience(wait.left()))
            return
        except ConnectionClosedError as error:
            if isinstance(error, FINAL):
                raise
            if (now := requests.reconnects()) != reconnects:  # it stood meanwhile, and was lost again
                attempts, reconnects = 0, now
            attempts += 1
            if attempts == ATTEMPTS or not wait.left():
                raise ConnectionClosedError(f"{what}, and the connection was lost: {error}") from error
            time.sleep(min(PAUSE, wait.left()))


def check_not_carried_out(op: str, body: dict[str, Any]) -> None:
    """Raises ConnectionClosedError if this is the server's answer to a request that was repeated, and must not be carried out twice."""
    if "carried_out" in body:
        was = "was" if body["carried_out"] == "yes" else "may have been"
        raise ConnectionClosedError(f"{op}() {was} carried out, at least in part, and the answer was lost with the connection")


def patience(timeout: float | None) -> float | None:
    """Seconds to wait for an answer: a request with timeout 0 still needs time for its answer. None is the connection's default."""
    return None if timeout is None or timeout == math.inf else max(LEAST_SECONDS, timeout)

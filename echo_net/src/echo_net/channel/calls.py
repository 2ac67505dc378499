"""CONTROL requests: a worker's, which wait for their answers, and how a learner answers them."""

from __future__ import annotations

import copy
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from echo_core.base.errors import ClosedError, ConnectionClosedError, EchoError, JobEnded
from echo_core.wire.later import Later
from echo_core.wire.protocol import Blob, Buffer, Kind, frame, pack_error, pack_request, parse_reply, parse_request, reply_frame, reply_pieces

from .link import Gate, Link, wait_until

__all__ = ["Calls", "Handler", "Question", "answer"]

log = logging.getLogger("echo")

Handler = Callable[[str, dict[str, Any], bytes], "tuple[dict[str, Any], Blob] | Later"]


def answer(handler: Handler, number: int, payload: Buffer, post: Callable[[bytes], None]) -> None:
    """Have a request handled, and the frame that answers it posted: now, or later and by any thread. ProtocolError if it is no request."""
    op, body, blob = parse_request(payload)
    try:
        given = handler(op, body, blob)
        if isinstance(given, Later):
            given.send_to(lambda pieces: post(b"".join(reply_frame(number, pieces))))
            return
        reply = reply_pieces(*given)
    except Exception as error:
        if not isinstance(error, EchoError):
            log.exception("request %r failed", op)
        reply = [pack_error(error)]
    post(b"".join(reply_frame(number, reply)))


class Calls:
    """The requests one end has made over its link and that are not answered yet."""

    def __init__(self, gate: Gate) -> None:
        self.answers = 0  # that have come
        self._gate = gate
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Buffer | Exception | None] = {}
        self._given_up: deque[int] = deque()  # of them: see `forget`

    def ask(self, link: Link, op: str, body: dict[str, Any], blob: bytes) -> int:
        """Send one request: its number, for `wait` or `forget`. `gate.lock` held."""
        while self._given_up:
            self._waiting.pop(self._given_up.popleft(), None)
        number = next(self._numbers)
        link.post(frame(Kind.CONTROL, pack_request(op, body, blob), seq=number))
        self._waiting[number] = None
        return number

    def wait(self, number: int, op: str, timeout: float, who: str) -> tuple[dict[str, Any], memoryview]:
        """The answer to a request; `gate.lock` held.

        Raises what the other end reported, EchoTimeoutError, or what `fail` was given.
        """
        try:
            wait_until(
                self._gate.changed,
                lambda: self._waiting[number] is not None,
                timeout,
                lambda: f"request {op!r} waits for an answer of {who}",
            )
            answer = self._waiting[number]
        finally:
            del self._waiting[number]
        if isinstance(answer, Exception):
            text = f"request {op!r} was not answered (it may have been carried out): {answer}"
            if isinstance(answer, (ClosedError, JobEnded)):  # this end was closed, or the job has ended: no later request is answered either
                error = copy.copy(answer)
                error.args = (text,)
                raise error
            raise ConnectionClosedError(text)
        assert answer is not None
        return parse_reply(answer)

    def forget(self, number: int) -> None:
        """Nobody will wait for this answer. From any thread, whatever locks it holds."""
        self._given_up.append(number)

    def answered(self, number: int, payload: Buffer) -> None:
        """An answer has come; of a request given up since, it is dropped. `gate.lock` held."""
        self.answers += 1
        if number in self._waiting:
            self._waiting[number] = payload
            self._gate.changed.notify_all()

    def fail(self, error: Exception) -> None:
        """The connection is lost: no request under way will be answered. `gate.lock` held."""
        for number, answer in self._waiting.items():
            if answer is None:
                self._waiting[number] = error
        self._gate.changed.notify_all()


class Question:
    """A request that was sent. Called with a timeout, once, it waits for the answer; dropped before, nobody does."""

    def __init__(self, calls: Calls, number: int, wait: Callable[[int, float | None], tuple[dict[str, Any], memoryview]]) -> None:
        self._calls, self._number = calls, number
        self._wait: Callable[[int, float | None], tuple[dict[str, Any], memoryview]] | None = wait

    def __call__(self, timeout: float | None = None) -> tuple[dict[str, Any], memoryview]:
        wait, self._wait = self._wait, None
        if wait is None:
            raise ValueError("the answer was taken")
        return wait(self._number, timeout)

    def __del__(self) -> None:
        if self._wait is not None:
            self._calls.forget(self._number)

"""CONTROL requests: those of this end that wait for their answers, and answering the other's."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

from ..errors import ConnectionClosedError, EchoError
from ..wire import Buffer, Kind, frame, pack_error, pack_reply, pack_request, parse_reply, parse_request
from .link import Gate, Link, wait_until

__all__ = ["Calls", "Handler", "answer"]

log = logging.getLogger("echo")

Handler = Callable[[str, dict[str, Any], bytes], tuple[dict[str, Any], bytes]]


def answer(handler: Handler, payload: Buffer) -> bytes:
    """Have a request handled: the payload of the answer. ProtocolError if it is no request."""
    op, body, blob = parse_request(payload)
    try:
        return pack_reply(*handler(op, body, blob))
    except EchoError as error:
        return pack_error(error)
    except Exception as error:
        log.exception("request %r failed", op)
        return pack_error(error)


class Calls:
    """The requests one end has made over its link and that are not answered yet."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Buffer | Exception | None] = {}

    def ask(
        self, link: Link, op: str, body: dict[str, Any], blob: bytes, timeout: float, who: str
    ) -> tuple[dict[str, Any], bytes]:
        """Send one request and wait for its answer; `gate.lock` held.

        Raises what the other end reported, EchoTimeoutError, or what `fail` was given.
        """
        number = next(self._numbers)
        link.post(frame(Kind.CONTROL, pack_request(op, body, blob), seq=number))
        self._waiting[number] = None
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
            raise ConnectionClosedError(
                f"request {op!r} was not answered (it may have been carried out): {answer}"
            )
        assert answer is not None
        return parse_reply(answer)

    def answered(self, number: int, payload: Buffer) -> None:
        """An answer has come; of a request given up since, it is dropped. `gate.lock` held."""
        if number in self._waiting:
            self._waiting[number] = payload
            self._gate.changed.notify_all()

    def fail(self, error: Exception) -> None:
        """The connection is lost: no request under way will be answered. `gate.lock` held."""
        for number, answer in self._waiting.items():
            if answer is None:
                self._waiting[number] = error
        self._gate.changed.notify_all()

"""The threads of a client that carry out calls of its server (`Client.serve`). The other end is server/requests/calls.py."""

from __future__ import annotations

import logging
import math
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..base.errors import ClosedError, ConfigError, EchoError, ForkError, JobEnded
from ..base.waiting import unlogged

if TYPE_CHECKING:
    from ..wire.transport import Connection
    from .requests import Requests

__all__ = ["CallHandler", "Serving", "abandoned"]

_log = logging.getLogger("echo")

CallHandler = Callable[[dict[str, Any], bytes], "tuple[dict[str, Any], Any]"]

PAUSES = (0.05, 1.0)  # seconds until the next attempt after the connection was lost: at first, and at most
JOIN_SECONDS = 1.0  # for threads that carry out no call; others end with their call
MOST_TEXT = 32_768  # characters of an error


class Serving:
    """The operations of one client that its server may call. Thread-safe. It does not refer to the client, which can so be dropped."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads: dict[str, list[threading.Thread]] = {}
        self._busy: set[threading.Thread] = set()

    def add(self, op: str, handler: CallHandler, concurrency: int) -> None:
        """See `Client.serve`."""
        if not isinstance(op, str) or not op:
            raise ConfigError(f"the name of an operation must be text, not {op!r}")
        if not callable(handler):
            raise ConfigError(f"the handler of {op!r} must be callable as handler(body, blob), not {handler!r}")
        if type(concurrency) is not int or concurrency < 1:
            raise ConfigError(f"concurrency must be a whole number, at least 1, not {concurrency!r}")
        with self._lock:
            if self._over.is_set():
                raise ClosedError("this client is closed")
            if op in self._threads:
                raise ConfigError(f"this client serves {op!r} already; choose another name")
            threads = [threading.Thread(target=self._run, args=(op, handler), name=f"echo-serve-{op}", daemon=True) for _ in range(concurrency)]
            self._threads[op] = threads
        for thread in threads:
            thread.start()

    def stop(self) -> None:
        """Take no further calls. The connection still has to be closed, which ends the waits."""
        self._over.set()

    def join(self) -> None:
        """The connection is closed: wait for the threads that carry out no call."""
        with self._lock:
            threads = [thread for threads in self._threads.values() for thread in threads]
        for thread in threads:
            if thread is not threading.current_thread() and thread not in self._busy:
                thread.join(JOIN_SECONDS)

    def _run(self, op: str, handler: CallHandler) -> None:
        """Ask for a call, carry it out, give its result with the request for the next one."""
        result: dict[str, Any] = {}
        data: Any = b""
        pause = PAUSES[0]
        told = ""
        while not self._over.is_set():
            try:
                with unlogged():
                    call, blob = self._requests.request("calls/next", {"op": op, **result}, data, math.inf)
                pause = PAUSES[0]
            except (ForkError, JobEnded):
                return
            except Exception as error:
                if self._over.is_set():
                    return
                # The connection is lost, or the server closes, and so the caller gets an error. Or the result cannot be sent: then
                # the caller gets that.
                lost = isinstance(error, (ConnectionError, TimeoutError, ClosedError))
                if not lost and "call" in result and "error" not in result:
                    result, data = {"call": result["call"], "error": _text(error)}, b""
                    continue
                result, data = {}, b""
                if not lost and str(error) != told:
                    told = str(error)
                    _log.warning("no calls of %r can be served: %s", op, told)
                self._over.wait(pause)
                pause = min(2 * pause, PAUSES[1])
                continue
            thread = threading.current_thread()
            self._busy.add(thread)
            try:
                result, data = _carried_out(op, handler, call, bytes(blob))
            finally:
                self._busy.discard(thread)
            del call, blob


def _carried_out(op: str, handler: CallHandler, call: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Any]:
    """The result of one call, as the next request has it."""
    number = call.get("call")
    try:
        given = handler(call["body"], blob)
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], dict):
            raise TypeError(f"the handler of {op!r} returned {given!r:.200}; it must return (body, blob), with a dict as body")
        data = given[1] if isinstance(given[1], (bytes, bytearray, memoryview)) else b"".join(given[1])
        return {"call": number, "body": given[0]}, data
    except BaseException as error:  # SystemExit, too: the caller waits for a result
        if not isinstance(error, EchoError):
            _log.exception("a call of %r failed", op)
        return {"call": number, "error": _text(error)}, b""


def _text(error: BaseException) -> str:
    return (str(error) if isinstance(error, EchoError) else f"{type(error).__name__}: {error}")[:MOST_TEXT]


def abandoned(serving: Serving, connection: Connection) -> None:
    """The client was dropped and not closed. Its threads would keep the connection for ever."""
    serving.stop()

    def close() -> None:
        with suppress(EchoError, OSError):
            connection.close(1.0)

    with suppress(RuntimeError):  # there are no more threads, or the process ends, and the connection with it
        threading.Thread(target=close, name="echo-abandoned", daemon=True).start()
    warnings.warn("unclosed Client that serves calls; call close(), or use it in a with statement", ResourceWarning, stacklevel=2)

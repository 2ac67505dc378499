"""TLS handshakes that fail inside grpcio, which does not report them: `Handshakes` finds them by the calls that do not come."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from .expiry import expired

__all__ = ["Handshakes"]

log = logging.getLogger("echo")

COMPLAINT_PAUSE = 5.0  # seconds between two log lines, so that unauthenticated clients cannot fill the disk
LOOK_PAUSE = 0.25  # seconds between two checks while many connections come
SLACK_SECONDS = 0.5  # allowed from the end of a handshake to its first call

#: Attributes of `grpc.RpcMethodHandler`, by (requests are a stream, answers are a stream).
KINDS = {(False, False): "unary_unary", (False, True): "unary_stream", (True, False): "stream_unary", (True, True): "stream_stream"}


class Handshakes(grpc.ServerInterceptor):  # type: ignore[misc]
    """Counts connections that began a TLS handshake but made no call.

    grpcio asks for a certificate each time it accepts a connection, which shows that a handshake has begun (`begun`), and every call says to which
    connection it belongs. A connection without a call in time has failed, or its client had nothing to say. grpcio does not tell which of the two
    happened, to which client, or why. A connection that calls removes the youngest open entry, because a successful handshake takes milliseconds.
    Calls over a session that was resumed after its certificate had expired are refused here, and count too.

    No reference from here may lead to the server: grpcio's C core holds `begun`, where no garbage collector sees it.

    Args:
        timeout: seconds that grpcio gives a handshake.
        idle: seconds after which grpcio ends a connection without a call; so long, a connection is remembered.
        most: connections that grpcio serves at a time. If more are open, the oldest have ended.
        wake: asks the caller of `look` to call it; may be called from any thread.
        let_in: is called for each connection, by one thread at a time.
    """

    def __init__(self, timeout: float, idle: float, most: int, wake: Callable[[], Any], let_in: Callable[[], Any] = lambda: None) -> None:
        self.where = ""  # the learner's address
        self.failed = 0
        self._patience = timeout + SLACK_SECONDS
        self._idle = idle + SLACK_SECONDS
        self._most = most
        self._wake = wake
        self._let_in = let_in
        self._lock = threading.Lock()
        self._open: deque[float] = deque()  # when they began, oldest first
        self._calls: dict[str, int] = {}  # running calls, by connection
        self._quiet: OrderedDict[str, float] = OrderedDict()  # since when connections have no call, longest first
        self._untold = 0
        self._told_at = -COMPLAINT_PAUSE

    def begun(self) -> None:
        """A connection was accepted. The return value tells grpcio that the certificate has not changed."""
        with self._lock:
            self._let_in()
            first = not self._open and not self._untold
            self._open.append(time.monotonic())
            if len(self._open) > self._most:
                self._open.popleft()
                self._fail()
        if first:
            self._wake()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None
        kind = KINDS[handler.request_streaming, handler.response_streaming]
        behavior = getattr(handler, kind)

        def called(request: Any, context: grpc.ServicerContext) -> Any:
            self._called(context)
            if reason := expired(context.auth_context()):
                with self._lock:
                    self._fail()
                self._wake()
                context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
            return behavior(request, context)

        wrap = getattr(grpc, f"{kind}_rpc_method_handler")
        return wrap(called, handler.request_deserializer, handler.response_serializer)

    def _called(self, context: grpc.ServicerContext) -> None:
        connection = context.peer()
        with self._lock:
            if connection not in self._calls and self._quiet.pop(connection, None) is None and self._open:
                self._open.pop()
            self._calls[connection] = self._calls.get(connection, 0) + 1
        if not context.add_callback(partial(self._ended, connection)):
            self._ended(connection)

    def _ended(self, connection: str) -> None:
        with self._lock:
            self._calls[connection] -= 1
            if not self._calls[connection]:
                del self._calls[connection]
                self._quiet[connection] = time.monotonic()

    def look(self) -> float | None:
        """Count failed handshakes, and log them at a limited rate. Returns the seconds until the next call; None if it is enough to call when woken."""
        now = time.monotonic()
        with self._lock:
            while self._open and self._open[0] <= now - self._patience:
                self._open.popleft()
                self._fail()
            while self._quiet and next(iter(self._quiet.values())) <= now - self._idle:
                self._quiet.popitem(last=False)
            tell = self._untold if now - self._told_at >= COMPLAINT_PAUSE else 0
            if tell:
                self._untold, self._told_at = 0, now
            due = [self._open[0] + self._patience] if self._open else []
            due += [self._told_at + COMPLAINT_PAUSE] if self._untold else []
        if tell:
            log.warning(
                "%s: TLS handshakes that failed, or that no call followed, and calls over resumed sessions whose certificate has expired: %d (a"
                " certificate that has expired or that an unknown authority issued, none where one is asked for, a worker that does not trust this"
                " learner's, no TLS, nobody who spoke; grpcio's reasons: GRPC_VERBOSITY=INFO)",
                self.where,
                tell,
            )
        return max(min(due) - now, LOOK_PAUSE) if due else None

    def _fail(self) -> None:
        self.failed += 1
        self._untold += 1

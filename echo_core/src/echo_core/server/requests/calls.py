"""Calls of the server to its clients (`Server.ask`). Each is the answer to a request "calls/next", which the client parks.

The result of a call comes with the client's next such request. So calls need nothing of a transport but requests.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from ...base.errors import ClosedError, ConnectionClosedError, EchoError, EchoTimeoutError
from ...wire.later import Later

if TYPE_CHECKING:
    from ...wire.peer import Peer

__all__ = ["Call", "Calls"]

SERVE_SECONDS = 5.0  # after its connection, for a client to serve its first operation
MOST_IDLE = 1024  # requests "calls/next" of one client that are remembered


class Call:
    """One call, until its result is there. Thread-safe."""

    def __init__(self, number: str, op: str, body: dict[str, Any], blob: bytes) -> None:
        self.number, self.op, self.body, self.blob = number, op, body, blob
        self._settled = threading.Event()
        self._result: tuple[dict[str, Any], bytes] | BaseException | None = None

    def request(self) -> dict[str, Any]:
        """The body that is sent to the client beside the blob."""
        return {"call": self.number, "body": self.body}

    def settle(self, result: tuple[dict[str, Any], bytes] | BaseException) -> None:
        """The result is there, or it will never be. Called once, by who took the call out of its client's."""
        self._result = result
        self._settled.set()

    def wait(self, timeout: float | None) -> tuple[dict[str, Any], bytes] | None:
        """The result; None if the time is over."""
        if not self._settled.wait(timeout):
            return None
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


class _Client:
    """The calls to one client. The lock of `Calls` guards it."""

    def __init__(self) -> None:
        self.asked_by: Peer | None = None  # its connection that asks for calls; None before the first request for one
        self.serves = False  # whether it has ever asked for calls
        self.idle: dict[str, deque[Later]] = {}  # by operation: its requests for calls
        self.queued: dict[str, deque[Call]] = {}  # by operation: calls that nobody has asked for
        self.given: dict[str, Call] = {}  # by number: calls that it has
        self.idle_count = 0


class Calls:
    """The calls of one server. Thread-safe.

    Args:
        connected: whether a client is connected. It is true when the client makes its first request.
    """

    def __init__(self, connected: Callable[[Peer], bool]) -> None:
        self._connected = connected
        self._lock = threading.Lock()
        self._clients: dict[Hashable, _Client] = {}  # by `Peer.owner`
        # Another server, or an earlier one at this address, must not take the result for that of a call of its own.
        self._numbers = map("{}-{}".format, itertools.repeat(secrets.token_hex(8)), itertools.count(1))
        self._closed = False

    # -------------------------------------------------------------------------- for the asker

    def ask(self, peer: Peer, op: str, body: dict[str, Any], blob: bytes, timeout: float | None) -> tuple[dict[str, Any], bytes]:
        """See `Server.ask`."""
        call = Call(next(self._numbers), op, body, blob)
        self._hand_over(peer, call)
        try:
            patience = max(0.0, peer.connected_at + SERVE_SECONDS - time.time())
            if (timeout is None or timeout > patience) and not self._serves(peer):
                if (result := call.wait(patience)) is not None:
                    return result
                if not self._serves(peer) and self._take(peer, call) is not None:
                    raise EchoError(f"{peer.name} serves nothing, so it was not asked for {op!r}; call client.serve({op!r}, ...) there first")
                timeout = timeout and timeout - patience
            result = call.wait(timeout)
        except BaseException:  # an error of the client, or Ctrl-C
            self._take(peer, call)
            raise
        if result is not None:
            return result
        given = self._take(peer, call)
        if given is None:  # its result has just come
            result = call.wait(None)
            assert result is not None
            return result
        why = "it has the call and may still carry it out" if given else f"it did not ask for the call: it is busy, or does not serve {op!r} (client.serve)"
        raise EchoTimeoutError(f"{peer.name} did not answer {op!r} within {timeout:g} s; {why}")

    def _serves(self, peer: Peer) -> bool:
        """Whether the client has ever asked for a call since it is connected."""
        with self._lock:
            client = self._clients.get(peer.owner)
            return client is not None and client.serves

    def _hand_over(self, peer: Peer, call: Call) -> None:
        """Give the call to the client if it waits for one, or keep it until then."""
        while (later := self._idle_for(peer, call)) is not None:
            try:
                if later(call.request(), call.blob):
                    return
            except BaseException:  # the call cannot be sent, and the client waits for another
                with self._lock:
                    if (client := self._clients.get(peer.owner)) is not None and client.given.pop(call.number, None) is not None:
                        client.idle.setdefault(call.op, deque()).appendleft(later)
                        client.idle_count += 1
                raise
            if self._take(peer, call) is None:  # it was settled meanwhile, as the client has left
                return
        if not self._connected(peer) and self._take(peer, call) is not None:
            call.settle(_not_asked(peer, call))

    def _idle_for(self, peer: Peer, call: Call) -> Later | None:
        """A request of the client for such a call, which is then given to it; None: the call is queued."""
        with self._lock:
            if self._closed:
                raise ClosedError("the server is closed")
            if not self._connected(peer):
                raise _not_asked(peer, call)
            client = self._clients.setdefault(peer.owner, _Client())
            idle = client.idle.get(call.op, deque())
            while idle:
                later = idle.popleft()
                client.idle_count -= 1
                if not later.over:
                    client.given[call.number] = call
                    return later
            client.idle.pop(call.op, None)
            client.queued.setdefault(call.op, deque()).append(call)
            return None

    def _take(self, peer: Peer, call: Call) -> bool | None:
        """Take a call back: whether the client has it; None if it was settled before."""
        with self._lock:
            client = self._clients.get(peer.owner)
            if client is None:
                return None
            if client.given.pop(call.number, None) is not None:
                return True
            queue = client.queued.get(call.op, deque())
            if call not in queue:
                return None
            queue.remove(call)
            if not queue:
                del client.queued[call.op]
            return False

    # ------------------------------------------------------------------------- for the client

    def result(self, peer: Peer, number: object, result: tuple[dict[str, Any], bytes] | EchoError) -> None:
        """The client has carried out a call. It is ignored if nobody waits for it any more, or if another client got the call."""
        with self._lock:
            client = self._clients.get(peer.owner)
            call = client.given.pop(number, None) if client is not None and isinstance(number, str) else None
        if call is not None:
            call.settle(result)

    def next(self, peer: Peer, op: str) -> Call | Later:
        """The next call for a client that asks for one; or a `Later`, which gets it."""
        later = Later(peer)
        self._fail_former(peer)
        with self._lock:
            client = self._clients.setdefault(peer.owner, _Client())
            client.asked_by, client.serves = peer, True
            queue = client.queued.get(op)
            if queue:
                call = queue.popleft()
                if not queue:
                    del client.queued[op]
                client.given[call.number] = call
                return call
            if client.idle_count >= MOST_IDLE:
                raise EchoError(f"this client has asked for {MOST_IDLE} calls already, which have not come")
            client.idle.setdefault(op, deque()).append(later)
            client.idle_count += 1
        if not self._connected(peer):
            self.forget(peer)
        return later

    def fail(self, peer: Peer, call: Call, error: BaseException) -> None:
        """The client was to get this call, and cannot."""
        if self._take(peer, call) is not None:
            call.settle(error)

    # -------------------------------------------------------------------------------- the end

    def forget(self, peer: Peer, left: bool = False) -> None:
        """A connection has ended. If the client asked for calls by it, or has `left`, its calls fail."""
        with self._lock:
            client = self._clients.get(peer.owner)
            if client is None or not (left or client.asked_by is peer):
                return
            del self._clients[peer.owner]
            if not left and client.serves:  # its other connections say that it will come back
                self._clients[peer.owner] = again = _Client()
                again.serves = True
        _fail_all(peer, client)

    def _fail_former(self, peer: Peer) -> None:
        """If the client has asked for calls by a connection whose end was not reported yet, these calls fail now."""
        with self._lock:
            client = self._clients.get(peer.owner)
            if client is None or client.asked_by is None or client.asked_by is peer:
                return
            old = client.asked_by
        self.forget(old)

    def close(self) -> None:
        """The server closes: all calls fail. Idempotent."""
        with self._lock:
            self._closed = True
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            for call in itertools.chain(client.given.values(), *client.queued.values()):
                call.settle(ClosedError(f"the server was closed before {call.op!r} was answered"))


def _fail_all(peer: Peer, client: _Client) -> None:
    for call in client.given.values():
        call.settle(ConnectionClosedError(f"{peer.name} left before it had answered {call.op!r}, and may have carried it out"))
    for queue in client.queued.values():
        for call in queue:
            call.settle(_not_asked(peer, call))


def _not_asked(peer: Peer, call: Call) -> EchoError:
    return ConnectionClosedError(f"{peer.name} is not connected any more; it was not asked for {call.op!r}")

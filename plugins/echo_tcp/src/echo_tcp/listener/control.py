"""The control plane of a listener: one thread that accepts (see client_acceptor.py), authenticates, and reports.

It holds every connection until its handshake is done, then hands the socket to the native loops,
and later only receives their events; requests are carried out by other threads (requests.py). All
handshakes run side by side, and each is bounded in bytes and time, so that unauthenticated clients
can neither stop the thread nor fill its memory.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import selectors
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from echo_core.base.errors import EchoError, ProtocolError
from echo_core.wire.later import Later
from echo_core.wire.peer import Peer
from echo_core.wire.protocol import CLOSING, pack_error, parse_request, reply_frame, reply_pieces
from echo_net.handshake import ServerHandshake

from .._learner import ADDED, HOLDING, LOST, RECEIPT
from .client_acceptor import ClientAcceptor
from .complaints import Seldom
from .holder import TcpHolder
from .loops import Loops
from .memory_watch import MemoryWatch
from .pending import Pending
from .requests import Requests

if TYPE_CHECKING:
    from echo_core.wire.identity import Claim
    from echo_core.wire.protocol import Buffer
    from echo_core.wire.sink import Sink

    from .._learner import NativeLearner
    from ..echo1 import Echo1Handshake
    from ..options import TcpListenOptions

__all__ = ["Control"]

_log = logging.getLogger("echo")

COUNTED_BYTES = 64 << 10  # larger requests count in their client's memory until they are answered
CROWDED_SECONDS = 2.0  # when many clients come at once, a handshake may be ended after so long


class Control:
    """Serves the listening sockets `listening` until `stop`.

    `requests` must hand the requests of clients to `answer`. `natives` are the loops of each table by its name; those of "" serve who names none, or the first.
    `make_handshake` is given a client's address. `greeting` is what the learner says first, which only the original protocol has (echo1.py); else
    b"". `let_in` is given every socket that is accepted.
    """

    def __init__(
        self,
        listening: Iterable[socket.socket],
        natives: Loops,
        requests: Requests,
        sink: Sink,
        make_handshake: Callable[[str], ServerHandshake | Echo1Handshake],
        options: TcpListenOptions,
        greeting: bytes,
        let_in: Callable[[socket.socket], None],
    ) -> None:
        self.counts = {"connections_total": 0, "refused": 0, "protocol_errors": 0}
        self.farewell = CLOSING
        self._natives = natives
        self._sink = sink
        self._make_handshake = make_handshake
        self._options = options
        self._greeting = greeting
        self._complaints = Seldom()
        self._lock = threading.Lock()
        self._peers: dict[tuple[str, int], Peer] = {}  # by table and the native key
        self._holders: dict[tuple[str, int], TcpHolder] = {}  # of those peers that hold ids
        self._requests = requests
        self.memory_watch = MemoryWatch(natives, sink.client_memory)
        self._pending: OrderedDict[socket.socket, Pending] = OrderedDict()  # oldest first
        self._closing = False  # no more clients
        self._over = False  # and no more events
        self._stop_by = 0.0  # when the thread must have ended, once `_over` is set
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        for table, native in natives.items():
            self._selector.register(native.fileno(), selectors.EVENT_READ, partial(self._report, table))
        self._acceptor = ClientAcceptor(listening, self._selector, self._complaints, self._crowded, let_in, self._welcome, self._turn_away)
        self._unlistened = threading.Event()
        self._thread = threading.Thread(target=self._run, name="echo-tcp-control", daemon=True)
        self._thread.start()

    # -------------------------------------------------------------- called by other threads

    def peers(self) -> dict[tuple[str, int], Peer]:
        """The clients connected now, by their tables and native keys."""
        with self._lock:
            return dict(self._peers)

    def stop_accepting(self, timeout: float) -> None:
        """Free the address, and tell clients in their handshake that the learner is closing."""
        self._closing = True
        self._ring()
        if threading.current_thread() is self._thread:
            self._unlisten()
        else:
            self._unlistened.wait(timeout)

    def stop(self, timeout: float) -> None:
        """Report all events until now, and end."""
        self._stop_by = time.monotonic() + timeout
        self._over = True
        self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _ring(self) -> None:
        try:
            os.eventfd_write(self._wake, 1)
        except OSError:
            pass  # the thread has ended

    # ----------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            while not self._over:
                for key, events in self._selector.select(self._patience()):
                    try:
                        key.data(events)
                    except Exception:  # one client's trouble must not end the service of others
                        _log.exception("tcp control plane")
                self._look_at_the_clock()
                if self._closing:
                    self._unlisten()
            for table in self._natives:
                self._report(table, 0)
            self._requests.close(self._stop_by - time.monotonic())
        finally:
            self._unlisten()
            self._selector.close()
            os.close(self._wake)

    def _woken(self, _: int) -> None:
        os.eventfd_read(self._wake)

    def _patience(self) -> float | None:
        times = [pending.deadline for pending in self._pending.values()]
        if not self._acceptor.is_open and not self._closing:
            times.append(self._acceptor.opens_at)
        times += [claim.ask_again for _, claim in self._undecided()]
        times.append(self.memory_watch.due)
        return None if min(times) == math.inf else max(0.0, min(times) - time.monotonic())

    def _undecided(self) -> list[tuple[Pending, Claim]]:
        return [(p, p.claim) for p in self._pending.values() if p.claim is not None and not (p.claim.granted or p.hanging_up)]

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for pending, claim in self._undecided():
            if claim.ask_again <= now:
                self._go_on(pending, 0)
        for pending in [p for p in self._pending.values() if p.deadline <= now]:
            if not pending.hanging_up:
                self._complain_of(pending, pending.too_slow(self._options.handshake_timeout))
            self._drop(pending)
        if not self._acceptor.is_open and not self._closing and self._acceptor.opens_at <= now:
            self._acceptor.open()
        self.memory_watch.look_if_due()

    # --------------------------------------------------------------------------- before the handshake

    def _crowded(self) -> float | None:
        """None if one more handshake can begin, if need be in place of a slow one; otherwise the time at which to ask again."""
        if len(self._pending) < self._options.max_pending:
            return None
        oldest = next(iter(self._pending.values()))
        throw_out_at = min(oldest.began + CROWDED_SECONDS, oldest.deadline)
        return throw_out_at if throw_out_at > time.monotonic() else None

    def _make_room(self) -> None:
        """Make room for one more handshake. The oldest is ended only now, when another client needs its place."""
        while len(self._pending) >= self._options.max_pending:
            oldest = next(iter(self._pending.values()))
            self._complain_of(oldest, EchoError("it kept others waiting in its handshake"))
            self._drop(oldest)

    def _turn_away(self) -> bytes:
        """The answer to a client for which there is no descriptor."""
        self.counts["refused"] += 1
        if self._greeting:
            return b""
        return ServerHandshake(self._sink.spec).refuse("busy", "the learner is out of file descriptors")

    # ----------------------------------------------------------------------------- handshakes

    def _welcome(self, sock: socket.socket, address: str) -> None:
        self._make_room()
        sock.setblocking(False)
        deadline = time.monotonic() + self._options.handshake_timeout
        pending = Pending(sock, address, self._make_handshake(address), self._greeting, deadline)
        self._pending[sock] = pending
        self._selector.register(sock, pending.events, lambda events: self._go_on(pending, events))
        if (full := self._full()) is not None:
            pending.refuse("busy", full)
            self._complain_of(pending, EchoError(full))
        if pending.unsent or pending.hanging_up:
            self._go_on(pending, 0)

    def _full(self) -> str | None:
        """Why no more clients are taken; None if they are. Only clients whose handshake is done count, so that unauthenticated clients cannot keep
        workers out by staying in their handshake."""
        if len(self._peers) < self._options.max_connections:
            return None
        return f"this learner serves {self._options.max_connections} clients already; raise max_connections"

    def _go_on(self, pending: Pending, events: int) -> None:
        if pending.sock not in self._pending:
            return  # it was ended for another client, which the same call of select reported
        try:
            done = pending.go_on(events & selectors.EVENT_READ != 0)
        except EchoError as error:
            self._complain_of(pending, error)
            if not pending.hanging_up:
                self._drop(pending)
                return
            done = False
        except OSError:
            self._drop(pending)  # it hung up; that is not logged, because every port scanner does it
            return
        if not done:
            self._selector.modify(
                pending.sock, pending.events, lambda events: self._go_on(pending, events)
            )
        elif pending.hanging_up:
            self._drop(pending)
        elif not self._identified(pending):
            self._selector.modify(pending.sock, pending.events, lambda events: self._go_on(pending, events))
        elif (full := self._full()) is not None:  # others were quicker; it will come again and then get the reason
            self._complain_of(pending, EchoError(full))
            self._drop(pending)
        else:
            self._hand_over(pending)

    def _identified(self, pending: Pending) -> bool:
        """Whether the client holds its id by now. Only workers hold ids: nobody else sends samples."""
        hello = pending.hello()
        if hello["role"] != "worker" or self._greeting:
            return True
        if pending.claim is None:
            pending.holder = TcpHolder()
            process = f"{hello['pid']} {hello['host']}"
            pending.claim = self._sink.identities.claim(hello["client"], hello["session"], pending.holder, table=hello["table"], process=process)
        if not pending.claim.decided():
            return False
        if pending.claim.refusal and not pending.hanging_up:
            pending.refuse("identity", pending.claim.refusal)
            self._complain_of(pending, EchoError(pending.claim.refusal))
            self._go_on(pending, 0)
            return False
        return pending.claim.granted

    def _hand_over(self, pending: Pending) -> None:
        pending.accept()
        self._forget(pending)
        hello, sock = pending.hello(), pending.sock
        peer = Peer(
            id=hello["client"],
            name=hello["name"],
            address=pending.address,
            role=hello["role"],
            table=hello["table"],
            permissions=hello["permissions"],
            pid=hello["pid"],
            host=hello["host"],
            connected_at=time.time(),
            state_since=time.monotonic(),
        )
        # The loops of the first table also serve clients that name no table.
        table = "" if hello["table"] == next(iter(self._sink.tables), "") else hello["table"]
        if table not in self._natives:
            native = self._natives.add(table)
            self._selector.register(native.fileno(), selectors.EVENT_READ, partial(self._report, table))
        client, base = bytes.fromhex(hello["session"]), hello["base"]
        observer = peer.role != "worker"
        if observer:  # it has no samples, and cannot meddle with those of a worker whose session it knows
            client, base = hashlib.sha256(b"no worker" + client).digest()[:16], 0
        with self._lock:
            key = self._natives[table].add(
                sock,
                client,
                base,
                echo1=bool(self._greeting),
                observer=observer,
                unsent=bytes(pending.unsent),
                leftover=pending.leftover(),
                beat=math.inf if self._greeting else min(self._options.silence, hello["silence"]) / 3,
            )
            peer.memory = self.memory_watch.account(table, key, peer.name)
            self._peers[table, key] = peer
            if pending.holder is not None:
                self._holders[table, key] = pending.holder
                pending.holder.serve(self._natives[table], key, peer)
                pending.claim = None  # from now on the connection holds the id
        self.counts["connections_total"] += 1

    def _forget(self, pending: Pending) -> None:
        self._selector.unregister(pending.sock)
        del self._pending[pending.sock]

    def _drop(self, pending: Pending) -> None:
        self._forget(pending)
        if pending.claim is not None:
            pending.claim.withdraw()
        pending.sock.close()

    def _complain_of(self, pending: Pending, error: EchoError) -> None:
        self.counts["protocol_errors" if isinstance(error, ProtocolError) else "refused"] += 1
        # Logged as text: a log that keeps its records would otherwise keep the traceback and all objects that it refers to.
        self._complaints.warn("turned %s away: %s", pending.address, str(error))

    # --------------------------------------------------------------------------------- events

    def _report(self, table: str, _: int) -> None:
        native = self._natives[table]
        for kind, key, number, digest, text in native.take_events():
            if kind == HOLDING:
                self.memory_watch.holding()
                continue
            peer = self._peers.get((table, key))
            if peer is None:
                continue
            try:
                if kind == ADDED:
                    try:
                        self._sink.connected(peer)
                    finally:
                        native.begin(key)
                elif kind == LOST:
                    self._requests.after(
                        self._natives.group(table), key, partial(self._lost, table, key, peer, text.decode("utf-8", "replace"), bool(number))
                    )
                elif kind == RECEIPT:
                    peer.weights_version, peer.weights_digest = number, digest
                    self._sink.receipt(peer, number, digest)
            except Exception:  # most likely from a hook; the next event belongs to another client
                _log.exception("tcp: while reporting on worker %s", peer.name)

    def _lost(self, table: str, key: int, peer: Peer, reason: str, broken: bool) -> None:
        with self._lock:
            del self._peers[table, key]
            holder = self._holders.pop((table, key), None)
        self._natives[table].forget(key)
        self.memory_watch.forget(table, key)
        if holder is not None:
            self._sink.identities.release(peer.id, holder)
        self._sink.lost(peer, f"it broke the protocol: {reason}" if broken else reason)

    # ------------------------------------------------------------------------------- requests

    def answer(self, group: int, key: int, number: int, payload: bytes) -> None:
        """Carry out one request of a client. Called by a thread of `Requests`."""
        table = self._natives.name(group)
        native, peer = self._natives[table], self._peers.get((table, key))
        if peer is None:
            return
        try:
            op, body, blob = parse_request(payload)
        except ProtocolError as error:
            native.refuse(key, str(error).encode())
            return
        try:
            with peer.memory.holding(len(payload)) if peer.memory and len(payload) >= COUNTED_BYTES else nullcontext():
                given = self._sink.request(peer, op, body, blob)
                if isinstance(given, Later):
                    native.parked(key)
                    given.send_to(partial(_send_late, native, self.memory_watch, key, number))
                    return
                answer = reply_pieces(*given)
        except Exception as error:
            if not isinstance(error, EchoError):
                _log.exception("request %r of worker %s failed", op, peer.name)
            answer = [pack_error(error)]
        frame = reply_frame(number, answer)
        native.reply(key, frame)
        self.memory_watch.answered(sum(map(len, frame)))

    # -------------------------------------------------------------------------------- closing

    def _unlisten(self) -> None:
        if self._unlistened.is_set():
            return
        self._closing = True
        self._acceptor.close()
        for pending in list(self._pending.values()):
            pending.refuse(self.farewell.code, self.farewell.text)
            try:
                pending.go_on(False)
            except (EchoError, OSError):
                pass
            self._drop(pending)
        self._unlistened.set()


def _send_late(native: NativeLearner, watch: MemoryWatch, key: int, number: int, answer: list[Buffer]) -> None:
    """Send the answer to a request that was parked. It must not refer to the `Control`, which a closed listener frees at once."""
    frame = reply_frame(number, answer)
    native.reply(key, frame, True)
    watch.answered(sum(map(len, frame)))

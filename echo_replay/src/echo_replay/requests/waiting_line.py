"""The requests that wait at a replay table: draws that find too few items, and inserts that find no room. First come, first served.

They are parked requests (server/requests/parked.py in echo_core), so that a client that waits costs nothing until the table can serve it, over
every transport. One thread
for each table with such requests sleeps until the table has something for the first of them. It is woken by the same changes as a `sample()`
of the server's own process.

Only the server knows the order. A client gives its request a number, by which it can withdraw it. When the client's patience is over, it is
told why the request waits. If it then comes back with the same number, soon, it has the place that it had.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from echo_core.base.errors import ClosedError, EchoError, ProtocolError
from echo_core.wire.later import Later

if TYPE_CHECKING:
    from echo_core.wire.later import Answer
    from echo_core.wire.peer import Peer

    from ..tables.replay_table import ReplayTable

__all__ = ["TableLines", "Want"]

_log = logging.getLogger("echo")

KEPT_SECONDS = 2.0  # how long a place is kept for a client that was told why it waits, but no longer than it had waited
LOOK_SECONDS = 0.005  # until the next look at a table that seemed to have something for the first request, and had not
JOIN_SECONDS = 1.0  # for a thread at the end; one that is inside a slow sampler ends later, by itself
MOST_SECONDS = 1e6  # of patience


class Want(ABC):
    """What a request wants of its table. One thread at a time calls the methods.

    Attributes:
        n: of a draw, the number of items.
        begun: whether a part was carried out. Then the client is told nothing before its whole timeout is over.
    """

    n: int = 0
    begun: bool = False

    @abstractmethod
    def attempt(self) -> Answer | None:
        """The answer; None if the request has to wait. It may raise."""

    @abstractmethod
    def why(self) -> str:
        """Why the request has to wait."""

    def check(self) -> None:  # noqa: B027
        """The request is about to wait: raise ValueError if that is of no use."""

    def gave_up(self, why: str) -> Answer:
        """The answer when its patience is over. It may raise."""
        return {"wait": why}, b""


class _Waiter:
    """A request in a line. The lock of its `TableLines` guards it.

    Attributes:
        later, want: what answers it, and what it wants; None while its client was told why it waits and has not come back.
        since, ends: when it came (back), and when its patience is over or its place is given up (`time.monotonic()`).
        limit: when the timeout of its client is over.
    """

    __slots__ = ("ends", "key", "later", "limit", "peer", "since", "want")

    def __init__(self, key: tuple[int, int], peer: Peer) -> None:
        self.key, self.peer = key, peer  # while the peer is kept, no other has its id()
        self.later: Later | None = None
        self.want: Want | None = None
        self.since = self.ends = self.limit = 0.0

    def leave(self) -> tuple[Later | None, Want | None]:
        """It waits no longer, and must not keep what it wanted: entries of the heap refer to it."""
        later, want = self.later, self.want
        self.later = self.want = None
        return later, want


class Line:
    """The requests of one kind, in the order in which they came; by client (`id(peer)`) and number."""

    def __init__(self) -> None:
        self.waiters: dict[tuple[int, int], _Waiter] = {}

    def first(self) -> _Waiter | None:
        """The request whose turn it is. A client that is on the way back holds nobody up."""
        return next((waiter for waiter in self.waiters.values() if waiter.later is not None), None)


class TableLines:
    """The two lines of one table. Thread-safe. It does not refer to the server, which can so be dropped."""

    def __init__(self, table: ReplayTable) -> None:
        self.draws, self.inserts = Line(), Line()
        self._table = table
        self._lock = threading.Lock()
        self._ends: list[tuple[float, int, Line, _Waiter]] = []  # a heap; an entry whose time is not the waiter's any more has no meaning
        self._entries = itertools.count()
        self._looks_at = 0.0  # when the thread looks next (`time.monotonic()`)
        self._wake_fd = -1  # an eventfd, while there is a thread
        self._thread: threading.Thread | None = None
        self._closed = False

    # ------------------------------------------------------------------------ for the operations

    def ask(self, line: Line, peer: Peer, body: dict[str, Any], want: Want) -> Answer | Later:
        """The answer to a request: what it wants, or `{"wait": why}` after `patience` seconds in the line (0 or none: it does not wait).

        `timeout` says how long its client waits in all, in seconds. The client comes back after the answer "wait" if that is longer.

        Raises:
            ProtocolError: one of these is no number, or another request of this client has the number and waits. ValueError: see `Want.check`.
        """
        number, patience = body.get("number"), body.get("patience", 0)
        timeout, key = body.get("timeout", patience), (id(peer), number)
        if not self._others_wait(line, key) and (answer := want.attempt()) is not None:
            return answer
        if not all(type(value) in (int, float) and value >= 0 for value in (patience, timeout)) or (patience and type(number) is not int):
            raise ProtocolError("a request that may wait needs a whole number as number, and seconds as patience and timeout")
        if not patience:
            return want.gave_up(self._why(line, want))
        want.check()
        later = Later(peer)
        self._join(line, key, peer, want, later, min(patience, MOST_SECONDS), min(timeout, MOST_SECONDS))
        later.on_gone(partial(self._leave, line, key))
        return later

    def withdraw(self, peer: Peer, number: object) -> bool:
        """A client does not wait for its request any more. False if the request is in no line: it was answered, or did not come."""
        for line in (self.draws, self.inserts):
            with self._lock:
                waiter = line.waiters.get((id(peer), number)) if type(number) is int else None
                if waiter is None:
                    continue
                later, _ = self._remove(line, waiter)
            if later is not None:
                later({"wait": "its client has withdrawn it"})
            return True
        return False

    def waiting(self) -> dict[str, int]:
        """How many requests wait."""
        return {"draws_waiting": len(self.draws.waiters), "inserts_waiting": len(self.inserts.waiters)}

    def close(self) -> None:
        """End the thread. Every request was answered before."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)

    def _others_wait(self, line: Line, key: tuple[int, Any]) -> bool:
        """Whether a request must not be carried out before others, or has a place already."""
        if not line.waiters:  # the usual case, which needs no lock
            return False
        with self._lock:
            return (type(key[1]) is int and key in line.waiters) or line.first() is not None

    def _why(self, line: Line, want: Want) -> str:
        with self._lock:
            first = line.first()
        return _why(want, None if first is None else first.want)

    def _join(self, line: Line, key: tuple[int, Any], peer: Peer, want: Want, later: Later, patience: float, timeout: float) -> None:
        with self._lock:
            if self._closed:
                raise ClosedError("the server is closing")
            waiter = line.waiters.get(key)
            if waiter is not None and waiter.later is not None:
                raise ProtocolError(f"another request with the number {key[1]} waits at table {self._table.name!r}")
            if self._thread is None:
                self._start()
            if waiter is None:
                waiter = line.waiters[key] = _Waiter(key, peer)
            waiter.want, waiter.later, waiter.since = want, later, time.monotonic()
            waiter.limit = waiter.since + max(patience, timeout)
            self._end_at(line, waiter, waiter.since + patience)
            if line.first() is waiter or waiter.ends < self._looks_at:
                self._wake()

    def _leave(self, line: Line, key: tuple[int, Any]) -> None:
        """A request has ended without an answer: its client has left, or the server closes."""
        with self._lock:
            waiter = line.waiters.get(key)
            if waiter is not None and waiter.later is not None and waiter.later.over:
                self._remove(line, waiter)

    # ------------------------------------------------------------------------------ with the lock

    def _start(self) -> None:
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=f"echo-line-{self._table.name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            os.close(self._wake_fd)
            self._wake_fd, self._thread = -1, None
            raise EchoError(f"the server has no thread for requests that wait at a table: {error}") from error

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def _end_at(self, line: Line, waiter: _Waiter, ends: float) -> None:
        waiter.ends = ends
        heapq.heappush(self._ends, (ends, next(self._entries), line, waiter))
        if len(self._ends) > 2 * (len(self.draws.waiters) + len(self.inserts.waiters)) + 64:  # most requests are served long before their time
            self._ends = [entry for entry in self._ends if entry[3].ends == entry[0]]
            heapq.heapify(self._ends)

    def _remove(self, line: Line, waiter: _Waiter) -> tuple[Later | None, Want | None]:
        if line.first() is waiter:  # the next one may want less
            self._wake()
        del line.waiters[waiter.key]
        waiter.ends = -1.0  # its entry in the heap is void
        return waiter.leave()

    # --------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        table, wake_fd = self._table, self._wake_fd
        poll = select.poll()
        poll.register(wake_fd, select.POLLIN)
        while True:
            with self._lock:
                if self._closed:
                    self._wake_fd = -1
                    break
                draw, insert = self.draws.first(), self.inserts.first()
                n = 0 if draw is None or draw.want is None else draw.want.n
            draw_now = draw is not None and table.arm_draws(wake_fd, n)
            insert_now = insert is not None and table.arm_inserts(wake_fd)
            served = draw_now and self._serve(self.draws)
            served = (insert_now and self._serve(self.inserts)) or served
            if not served:
                left = LOOK_SECONDS if draw_now or insert_now else self._until_next(draw is not None)
                poll.poll(None if left == math.inf else math.ceil(left * 1000))
            if draw is not None and not draw_now:
                table.disarm_draws(wake_fd, n)
            if insert is not None and not insert_now:
                table.disarm_inserts(wake_fd)
            with suppress(BlockingIOError):
                os.eventfd_read(wake_fd)
            self._tell()
        os.close(wake_fd)

    def _serve(self, line: Line) -> bool:
        """Carry out the first request if that is possible now, and answer it. False if it has to wait."""
        with self._lock:
            waiter = line.first()
            if waiter is None:
                return True
            later, want = waiter.later, waiter.want
        assert later is not None and want is not None
        answer: Answer | Exception | None = None
        if not later.over:
            try:
                answer = want.attempt()
            except Exception as error:
                answer = error
            if answer is None:
                return False
        with self._lock:
            if line.waiters.get(waiter.key) is waiter:  # otherwise it was withdrawn meanwhile, or its client has left
                self._remove(line, waiter)
        if answer is not None:
            _answer(later, answer)
        return True

    def _until_next(self, draws: bool) -> float:
        """Seconds until somebody's patience is over, or an item that was lent comes back."""
        with self._lock:
            while self._ends and self._ends[0][3].ends != self._ends[0][0]:
                heapq.heappop(self._ends)
            self._looks_at = self._ends[0][0] if self._ends else math.inf
            left = max(0.0, self._looks_at - time.monotonic())
        back = self._table.next_return() if draws else None
        return left if back is None else min(left, max(back, LOOK_SECONDS))

    def _tell(self) -> None:
        """Tell those whose patience is over why they wait, and give up the places of those who did not come back."""
        now = time.monotonic()
        while True:
            with self._lock:
                if not self._ends or self._ends[0][0] > now:
                    return
                ends, _, line, waiter = heapq.heappop(self._ends)
                if waiter.ends != ends:
                    continue
                later, want, first = waiter.later, waiter.want, line.first()
                if later is None or want is None:
                    self._remove(line, waiter)
                    continue
                if want.begun and now < waiter.limit:
                    self._end_at(line, waiter, waiter.limit)
                    continue
                why = _why(want, None if first is None else first.want)
                waiter.leave()
                self._end_at(line, waiter, now + min(KEPT_SECONDS, now - waiter.since))
            try:
                answer: Answer | Exception = want.gave_up(why)
            except EchoError as error:
                answer = error
            _answer(later, answer)


def _why(want: Want, first: Want | None) -> str:
    """Why a request waits; `first` is the one whose turn it is."""
    if first is None or first is want:
        return want.why()
    return f"requests that came before it wait, too; the first of them: {first.why()}"


def _answer(later: Later, answer: Answer | Exception) -> None:
    if not isinstance(answer, Exception):
        try:
            later(*answer)
            return
        except Exception as error:  # the server may not hold so large an answer for this client
            answer = error
    if not isinstance(answer, (EchoError, ValueError)):
        _log.error("a request that waited at its table failed", exc_info=answer)
    later.fail(answer if isinstance(answer, EchoError) else EchoError(str(answer)))

"""The budget for memory that clients make a server hold: answers that nobody has fetched, parts of requests, frames that are not complete.

Every connection has an account. Code that keeps memory for a client takes the bytes from the client's account first, and gives them back
when the memory is free. Native code that cannot ask first is measured from time to time. A client that would go beyond its share gets an
error. If all clients together would go beyond the limit, the one that holds most is cut off. Old versions of the weights, which several
clients may share, are bounded by the same limit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ..errors import ConnectionClosedError, EchoError
from ..plural import counted
from .cgroup import total_memory

__all__ = ["Account", "ClientMemory"]

_log = logging.getLogger("echo")

PART_OF_MEMORY = 8  # without a limit of the user's, the budget is this part of the memory
PART_OF_BUDGET = 4  # one connection may hold this part of the budget
PART_OF_FRAMES = 2  # frames may hold this part of the budget; workers that wait for space must leave room for the learner's requests
LOOK_UP_SECONDS = 0.25  # while a frame waits for room: how often its connection is looked at
STALLED_SECONDS = 5.0  # while others wait for room, a frame has to be complete after so long


class ClientMemory:
    """The budget of one server. Thread-safe.

    Attributes:
        limit: bytes that all connections may make the server hold together.
        share: bytes that one connection may make it hold.
    """

    def __init__(self, limit: int | None = None) -> None:
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"client_memory must be a whole number of bytes, at least 1, or None, not {limit!r}")
        self.limit = total_memory() // PART_OF_MEMORY if limit is None else limit
        self.share = max(1, self.limit // PART_OF_BUDGET)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._frames = 0  # bytes of `_used` that are held by frames
        self._accounts: set[Account] = set()  # that hold something
        self._used = 0
        self._old_weights = 0  # bytes, at the last call of limit_downloads
        self._refused = 0
        self._cut_off = 0

    def account(self, name: str, cut_off: Callable[[], None], half_since: Callable[[], float] = lambda: 0.0) -> Account:
        """An account for a new connection; close it when the connection ends.

        `cut_off` must end the connection. It is called at most once, from any thread, without a lock of this class. It must not wait.
        `half_since()` says since when (`time.monotonic()`) a frame of the connection has been incomplete; 0.0 if none is.
        """
        return Account(self, name, cut_off, half_since)

    def limit_downloads(self, newest: int, downloads: Iterable[tuple[Account, int, int]]) -> None:
        """Cut off the clients that download the oldest versions of the weights, while the old versions need more than the limit.

        One old version may always stay. The versions are in memory for as long as anybody downloads them.

        Args:
            newest: the number of the newest version.
            downloads: for each client that downloads now: its account, the number of the version, and the version's size in bytes.
        """
        old: dict[int, list[Account]] = {}
        sizes: dict[int, int] = {}
        for account, version, size in downloads:
            if version != newest:
                old.setdefault(version, []).append(account)
                sizes[version] = size
        for version in sorted(sizes)[:-1]:
            if sum(sizes.values()) <= self.limit:
                break
            del sizes[version]
            for account in old[version]:
                account.cut_off(f"it has not received version {version} of the weights yet, and the newest is {newest}")
        with self._lock:
            self._old_weights = sum(sizes.values())

    def stats(self) -> dict[str, int]:
        """What is held now, the limits, and how often they were met."""
        with self._lock:
            most = max((account.held for account in self._accounts), default=0)
            return {
                "held_bytes": self._used,
                "held_bytes_of_worst": most,
                "old_weights_bytes": self._old_weights,
                "limit_bytes": self.limit,
                "share_bytes": self.share,
                "refused_total": self._refused,
                "cut_off_total": self._cut_off,
            }

    def _over_limit(self) -> bool:
        """Whether too much is held; the lock is held. What a single frame needs beyond the part of all frames does not count: others are not to
        blame for it."""
        return self._used - max(0, self._frames - self.limit // PART_OF_FRAMES) > self.limit


class Account:
    """What one connection makes the server hold. Thread-safe.

    Attributes:
        held: bytes that are taken now.
        used_at: when its client last made the server hold something or asked for it (`time.monotonic()`). Of accounts that hold the same, the
            one that was not used for longest is the worst.
        closed: whether the connection has ended, or was cut off.
    """

    def __init__(self, memory: ClientMemory, name: str, cut_off: Callable[[], None], half_since: Callable[[], float]) -> None:
        self.memory = memory
        self.name = name
        self.held = 0
        self.used_at = 0.0
        self.closed = False
        self._cut_off = cut_off
        self._half_since = half_since
        self._frame = 0
        self._waiting = 0
        self._measured = 0

    def take(self, n: int, push_out: bool = True) -> None:
        """Reserve `n` bytes before they are allocated. If it raises, nothing is reserved.

        Args:
            push_out: whether connections that hold more are cut off, if there is no room otherwise.

        Raises:
            EchoError: this connection would hold more than its share, or there is no room for it.
            ConnectionClosedError: the account is closed.
        """
        memory, ended = self.memory, []
        with memory._lock:
            if self.closed:
                raise ConnectionClosedError(f"the connection of {self.name} has ended")
            wanted = self.held + n
            if wanted > memory.share:
                memory._refused += 1
                raise EchoError(
                    f"the server would hold {wanted:,} bytes for this connection, and one connection may make it hold {memory.share:,}; request "
                    f"less at once, or raise Server(client_memory=), of which one connection gets a quarter"
                )
            while memory._used + n > memory.limit:
                worst = max(memory._accounts, key=lambda account: (account.held, -account.used_at), default=self)
                if not push_out or worst is self or worst.held < wanted:
                    memory._refused += 1
                    break
                worst._end()
                memory._cut_off += 1
                ended.append(worst)
            fits = memory._used + n <= memory.limit
            if fits:
                self._hold(n)
                self.used_at = time.monotonic()
        for account in ended:
            account._tell("of all clients, it made the server hold most memory")
        if not fits:
            raise EchoError(
                f"the server holds as much memory for its clients as it may, {memory.limit:,} bytes; try again later, or raise Server(client_memory=)"
            )

    def give(self, n: int) -> None:
        """Give `n` bytes back. After the account was closed, this does nothing."""
        with self.memory._lock:
            if not self.closed:
                self._hold(-n)

    def measured(self, n: int) -> None:
        """Set how many bytes the transport itself holds for this connection, which it could not reserve before.

        A connection that holds more than its share is cut off, and so are the worst ones while all together hold more than the limit.
        """
        memory, ended = self.memory, []
        with memory._lock:
            if self.closed:
                return
            self._hold(n - self._measured)
            self._measured = n
            if self.held > memory.share:
                ended.append(self)
                self._end()
            while memory._used > memory.limit:
                worst = max(memory._accounts, key=lambda account: (account.held, -account.used_at))
                ended.append(worst)
                worst._end()
            memory._cut_off += len(ended)
        for account in ended:
            account._tell("it made the server hold too much memory")

    @contextmanager
    def holding(self, n: int) -> Iterator[None]:
        """Hold `n` bytes within a with block. It raises the errors of `take`."""
        self.take(n)
        try:
            yield
        finally:
            self.give(n)

    @contextmanager
    def frame(self, n: int, ended: Callable[[], bool], already: int = 0) -> Iterator[None]:
        """Within the with block, hold `n` bytes for one frame that the connection receives.

        It waits while the frames of all connections hold their part of the budget, so that the client is held off and loses nothing. After
        `STALLED_SECONDS` of waiting, the connection whose frame has been incomplete for longest is cut off, if it has been incomplete for so
        long. A frame that is larger than that part waits until it is the only one.

        `already` is how many bytes of memory the beginning of the frame occupies before there is room for the frame: the piece of a channel
        whose bytes come in pieces. They are held while the frame waits. While all connections hold more than the limit, those are cut off that
        hold most for frames that wait, so that the frames which have room are completed. Of those that hold the same, it is the newest.

        Raises:
            ConnectionClosedError: `ended()` became true, or the account is closed.
        """
        try:
            self._wait_for_room(n, ended, already)
            yield
        finally:
            memory = self.memory
            with memory._lock:
                if not self.closed:
                    self._hold(-self._waiting - self._frame)
                    memory._frames -= self._frame
                    self._waiting = self._frame = 0
                    memory._changed.notify_all()

    def _wait_for_room(self, n: int, ended: Callable[[], bool], already: int) -> None:
        memory, began = self.memory, time.monotonic()
        while True:
            reasons: dict[Account, str] = {}
            with memory._lock:
                if self.closed or ended():
                    raise ConnectionClosedError(f"the connection of {self.name} has ended")
                if not memory._frames or memory._frames + n <= memory.limit // PART_OF_FRAMES:
                    self._hold(n - self._waiting)
                    memory._frames += n
                    self._frame, self._waiting = n, 0
                    return
                if already and not self._waiting:
                    self._waiting = already
                    self._hold(already)
                    while memory._over_limit() and (waiting := [account for account in memory._accounts if account._waiting]):
                        worst = max(waiting, key=lambda account: (account._waiting, account is self))
                        reasons[worst] = "of all clients whose messages wait for memory, it made the server hold most"
                        worst._end()
                if not reasons:
                    memory._changed.wait(LOOK_UP_SECONDS)
                now = time.monotonic()
                if now - began >= STALLED_SECONDS:
                    halves = [(since, id(account), account) for account in memory._accounts if account._frame and (since := account._half_since())]
                    if halves and now - min(halves)[0] >= STALLED_SECONDS:
                        since, _, stalled = min(halves)
                        reasons[stalled] = f"its message has been incomplete for {now - since:.0f} s while other clients wait for the memory"
                        stalled._end()
                memory._cut_off += len(reasons)
            for account, reason in reasons.items():
                account._tell(reason)

    def _hold(self, n: int) -> None:
        """Hold `n` bytes more, or less if it is negative; the budget's lock is held."""
        self.held += n
        self.memory._used += n
        if self.held:
            self.memory._accounts.add(self)
        else:
            self.memory._accounts.discard(self)

    def cut_off(self, reason: str) -> None:
        """End the connection, and log the reason. The caller must hold no lock that `cut_off` of the account takes."""
        with self.memory._lock:
            if self.closed:
                return
            self._end()
            self.memory._cut_off += 1
        self._tell(reason)

    def _tell(self, reason: str) -> None:
        _log.warning("%s is cut off: %s (client_memory is %s)", self.name, reason, counted(self.memory.limit, "byte"))
        cut_off = self._cut_off
        self._forget()
        cut_off()

    def close(self) -> None:
        """The connection has ended: everything is given back."""
        with self.memory._lock:
            self._end()
        self._forget()

    def _forget(self) -> None:
        """Refer no more to the connection, which refers to its account: what it holds would be left to the garbage collector."""
        self._cut_off, self._half_since = _nothing, _never

    def _end(self) -> None:
        """Close the account; the budget's lock is held."""
        self.memory._used -= self.held
        self.memory._frames -= self._frame
        self.memory._changed.notify_all()
        self.held = self._frame = self._waiting = self._measured = 0
        self.closed = True
        self.memory._accounts.discard(self)


def _nothing() -> None:
    """Takes the place of `cut_off` in an account whose connection has ended."""


def _never() -> float:
    """Takes the place of `half_since` in an account whose connection has ended."""
    return 0.0

"""The budget for memory that clients make a server hold: answers that nobody has fetched, parts of requests, frames that are not complete.

Every connection has an account. Whoever keeps memory for a client takes the bytes from the client's account first, and gives them back
when the memory is free. A client that would go beyond its share gets an error. If all clients together would go beyond the limit, the
one that holds most is cut off.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import ConnectionClosedError, EchoError
from .cgroup import total_memory

__all__ = ["Account", "ClientMemory"]

_log = logging.getLogger("echo")

PART_OF_MEMORY = 8  # without a limit of the user's, the budget is this part of the memory
PART_OF_BUDGET = 4  # one connection may hold this part of the budget


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
        self._accounts: set[Account] = set()  # that hold something
        self._used = 0
        self._refused = 0
        self._cut_off = 0

    def account(self, name: str, cut_off: Callable[[], None]) -> Account:
        """An account for a new connection; close it when the connection ends.

        `cut_off` must end the connection. It is called at most once, from any thread, without a lock of this class. It must not wait.
        """
        return Account(self, name, cut_off)

    def stats(self) -> dict[str, int]:
        """What is held now, the limits, and how often they were met."""
        with self._lock:
            most = max((account.held for account in self._accounts), default=0)
            return {
                "held_bytes": self._used,
                "held_bytes_of_worst": most,
                "limit_bytes": self.limit,
                "share_bytes": self.share,
                "refused_total": self._refused,
                "cut_off_total": self._cut_off,
            }


class Account:
    """What one connection makes the server hold. Thread-safe.

    Attributes:
        held: bytes that are taken now.
        used_at: when its client last made the server hold something or asked for it (`time.monotonic()`). Of accounts that hold the same, the
            one that was not used for longest is the worst.
        closed: whether the connection has ended, or was cut off.
    """

    def __init__(self, memory: ClientMemory, name: str, cut_off: Callable[[], None]) -> None:
        self.memory = memory
        self.name = name
        self.held = 0
        self.used_at = 0.0
        self.closed = False
        self._cut_off = cut_off

    def take(self, n: int) -> None:
        """Reserve `n` bytes before they are allocated. If it raises, nothing is reserved.

        Raises:
            EchoError: this connection would hold more than its share, or it is the one that would hold most.
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
                if worst is self or worst.held < wanted:
                    memory._refused += 1
                    break
                worst._end()
                memory._cut_off += 1
                ended.append(worst)
            fits = memory._used + n <= memory.limit
            if fits:
                self.held, self.used_at = wanted, time.monotonic()
                memory._used += n
                memory._accounts.add(self)
        for account in ended:
            _log.warning("%s is cut off: of all clients, it made the server hold most memory (client_memory is %d bytes)", account.name, memory.limit)
            account._cut_off()
        if not fits:
            raise EchoError(
                f"the server holds as much memory for its clients as it may, {memory.limit:,} bytes; try again later, or raise Server(client_memory=)"
            )

    def give(self, n: int) -> None:
        """Give `n` bytes back. After the account was closed, this does nothing."""
        with self.memory._lock:
            if not self.closed:
                self.held -= n
                self.memory._used -= n
                if not self.held:
                    self.memory._accounts.discard(self)

    @contextmanager
    def holding(self, n: int) -> Iterator[None]:
        """Hold `n` bytes within a with block. It raises the errors of `take`."""
        self.take(n)
        try:
            yield
        finally:
            self.give(n)

    def close(self) -> None:
        """The connection has ended: everything is given back."""
        with self.memory._lock:
            self._end()

    def _end(self) -> None:
        """Close the account; the budget's lock is held."""
        self.memory._used -= self.held
        self.held = 0
        self.closed = True
        self.memory._accounts.discard(self)

"""Counts what the native loops hold for each client in the client's account (`echo_core.base.memory.client_memory`).

The loops cannot ask before they keep something: answers that a client does not read, the beginning of a message, a version of the weights
that is on its way. So their figures are looked at every second, after every publish, and whenever answers of many bytes were given.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echo_core.base.memory.client_memory import Account, ClientMemory

    from .loops import Loops

__all__ = ["LOOK_SECONDS", "MemoryWatch"]

LOOK_SECONDS = 1.0
LEAST_BYTES = 16 << 10  # a client for which less is held does not count
TOO_MUCH = b"the learner held too much memory for this client"
PART_ANSWERED = 16  # answers of so large a part of the budget are a reason to look


class MemoryWatch:
    """Thread-safe.

    Attributes:
        looked_at: when the figures were looked at last (`time.monotonic()`).
    """

    def __init__(self, natives: Loops, memory: ClientMemory) -> None:
        self.looked_at = time.monotonic()
        self._natives = natives
        self._memory = memory
        self._lock = threading.Lock()
        self._accounts: dict[tuple[str, int], Account] = {}  # by table and native key
        self._counted: set[Account] = set()  # for which something was held at the last look
        self._answered = 0

    def account(self, table: str, key: int, name: str) -> Account:
        """Make the account of a new connection, which is ended if it makes the learner hold too much."""
        account = self._memory.account(name, partial(self._natives[table].evict, key, TOO_MUCH))
        with self._lock:
            self._accounts[table, key] = account
        return account

    def forget(self, table: str, key: int) -> None:
        """The connection has ended."""
        with self._lock:
            self._counted.discard(self._accounts.pop((table, key)))

    def answered(self, size: int) -> None:
        """An answer of `size` bytes was handed to a loop."""
        with self._lock:
            self._answered += size
            if self._answered < self._memory.limit // PART_ANSWERED:
                return
        self.look()

    def look(self) -> None:
        """Bring the accounts up to date, which cuts off the clients that make the learner hold too much."""
        held: dict[Account, int] = {}
        downloads: list[tuple[Account, int, int]] = []
        with self._lock:
            self.looked_at, self._answered = time.monotonic(), 0
            for table, native in list(self._natives.items()):
                for row in native.held(LEAST_BYTES):
                    account = self._accounts.get((table, row["key"]))
                    if account is None:
                        continue
                    held[account] = row["bytes"]
                    if row["version"]:
                        downloads.append((account, row["version"], row["version_bytes"]))
            for account in self._counted - held.keys():
                account.measured(0)
            self._counted = set(held)
        for account, size in held.items():
            account.measured(size)
        self._memory.limit_downloads(self._natives.version(), downloads)

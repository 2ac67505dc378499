"""Counts what the native loops hold for each client in the client's account (`echo_core.base.memory.client_memory`).

The loops cannot ask before they keep something: answers that a client does not read, the beginning of a message, a version of the weights
that is on its way. So their figures are looked at every second while there is something, after every publish, and whenever answers of many
bytes were given.
"""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echo_core.base.memory.client_memory import Account, ClientMemory

    from .loops import Loops

__all__ = ["LOOK_SECONDS", "MemoryWatch"]

LOOK_SECONDS = 1.0
TOO_MUCH = b"the learner held too much memory for this client"
PART_ANSWERED = 16  # answers of so large a part of the budget are a reason to look


class MemoryWatch:
    """Thread-safe.

    Attributes:
        due: when the figures must be looked at next (`time.monotonic()`); infinite while nothing is held. Only the thread that takes the
            loops' events uses it.
    """

    def __init__(self, natives: Loops, memory: ClientMemory) -> None:
        self.due = math.inf
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

    def holding(self) -> None:
        """A loop has reported `HOLDING`."""
        self.due = min(self.due, time.monotonic() + LOOK_SECONDS)

    def look_if_due(self) -> None:
        """Look if it is time. If nothing is held, ask the loops to report when something is."""
        if self.due > time.monotonic():
            return
        anything = self.look()
        if not anything:
            for native in list(self._natives.values()):
                native.tell_when_holding()
            anything = self.look()  # what came before the loops were asked
        self.due = time.monotonic() + LOOK_SECONDS if anything else math.inf

    def look(self) -> bool:
        """Bring the accounts up to date, which cuts off the clients that make the learner hold too much. Returns whether anything is held."""
        held: dict[Account, int] = {}
        downloads: list[tuple[Account, int, int]] = []
        with self._lock:
            self._answered = 0
            for table, native in list(self._natives.items()):
                for row in native.held():
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
        return bool(held)

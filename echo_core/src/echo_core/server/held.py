"""What a server keeps for a client from one request to the next: batches and answers that are fetched in parts, and parts of requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.errors import ConnectionClosedError

if TYPE_CHECKING:
    from ..base.memory.client_memory import Account, ClientMemory
    from ..wire.peer import Peer

__all__ = ["FRESH_SECONDS", "Held"]

FRESH_SECONDS = 20.0  # what a client has not asked for during so many seconds is dropped


class _Kept(NamedTuple):
    value: Any
    size: int
    used_at: float  # time.monotonic()


class Held:
    """The kept values, by client and key. Their bytes count in the client's account. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[int, tuple[Account, dict[Hashable, _Kept]]] = {}

    def open(self, peer: Peer, memory: ClientMemory) -> None:
        """Give `peer` an account, as its transport gave it none and cannot cut it off. All that is kept for it is dropped instead."""

        def drop_all() -> None:
            with self._lock:
                self._of.pop(id(peer), None)
            self.open(peer, memory)

        peer.memory = memory.account(peer.name, drop_all)

    def make_room(self, peer: Peer, size: int) -> Account:
        """Take `size` bytes from the client's account and return it. If its share is too small, what it left longest is dropped.

        Raises:
            EchoError: see `Account.take`.
        """
        account = peer.memory
        if account is None:
            raise ConnectionClosedError(f"{peer.name} is not connected")
        self.expire()
        with self._lock:
            kept = self._of.get(id(peer), (account, {}))[1]
            while kept and size <= account.memory.share < account.held + size:
                account.give(kept.pop(min(kept, key=lambda key: kept[key].used_at)).size)
        account.take(size)
        return account

    def keep(self, peer: Peer, key: Hashable, value: Any, size: int) -> None:
        """Keep a value, for whose `size` bytes the caller called `make_room`."""
        assert peer.memory is not None
        with self._lock:
            if peer.memory.closed:  # it has left: nobody would drop the value
                return
            account, kept = self._of.setdefault(id(peer), (peer.memory, {}))
            if key in kept:
                account.give(kept[key].size)
            kept[key] = _Kept(value, size, time.monotonic())

    def get(self, peer: Peer, key: Hashable) -> Any:
        """The value of this key, or None."""
        with self._lock:
            if id(peer) not in self._of or key not in self._of[id(peer)][1]:
                return None
            account, kept = self._of[id(peer)]
            account.used_at = now = time.monotonic()
            kept[key] = kept[key]._replace(used_at=now)
            return kept[key].value

    def drop(self, peer: Peer, key: Hashable) -> None:
        with self._lock:
            if id(peer) in self._of:
                account, kept = self._of[id(peer)]
                if (old := kept.pop(key, None)) is not None:
                    account.give(old.size)

    def forget(self, peer: Peer) -> None:
        """Drop everything of a client that has left."""
        with self._lock:
            if peer.memory is not None:
                peer.memory.close()
            self._of.pop(id(peer), None)

    def expire(self) -> float:
        """Drop what no client has asked for during `FRESH_SECONDS`.

        Returns:
            for how many seconds nothing else can expire.
        """
        now = oldest = time.monotonic()
        with self._lock:
            for account, kept in self._of.values():
                for key in [key for key, value in kept.items() if now - value.used_at > FRESH_SECONDS]:
                    account.give(kept.pop(key).size)
                oldest = min([oldest, *(value.used_at for value in kept.values())])
        return max(0.0, oldest + FRESH_SECONDS - now)

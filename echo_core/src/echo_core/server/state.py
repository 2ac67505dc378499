"""The state of a server: its peers, weights and listeners. The parts of `Server` in this folder share it."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ..base.memory.client_memory import ClientMemory
from ..plugins import discovery
from ..security import tokens
from ..store.storage_operations import StorageOperations
from ..store.store import Store
from ..wire.identity import Identities
from ..wire.peer import Peer, workers_of
from ..wire.transport import Listener
from .held import Held
from .requests.calls import Calls
from .requests.parked import MOST_PARKED, MOST_PARKED_PER_CLIENT, ParkedRequests
from .statistics.added_stats import AddedStats
from .tap import Taps
from .weights.publishing import Publishing
from .weights.receipts import Receipts, receipts_of

if TYPE_CHECKING:
    import pluggy

    from ..wire.weights import PackedWeights
    from .weights.weights_source import WeightsSource

__all__ = ["ServerState"]

_log = logging.getLogger("echo")


class ServerState(Store):
    """The storages of a server and its connected clients. `Server` adds start and close, batches, checkpoints and publishing."""

    _operations: ClassVar[Mapping[str, Callable[..., Any]]]  # by name; clients call them by `request()`

    def __init__(
        self,
        token: tokens.Explicit,
        observers: pluggy.PluginManager,
        client_memory: int | None = None,
        max_parked: int = MOST_PARKED,
        max_parked_per_client: int = MOST_PARKED_PER_CLIENT,
    ) -> None:
        self.incarnation: str = secrets.token_hex(16)  # see `Sink`
        self._token = token
        self._token_source: tokens.TokenSource | None = None
        self._listeners: list[Listener] = []
        self._peers: dict[int, Peer] = {}
        # The same peers again, so that nobody's arrival costs more because thousands are here: the workers by owner, and all by name.
        self._owners: dict[Hashable, dict[int, Peer]] = {}
        self._names: dict[str, dict[int, Peer]] = {}
        self._taps = Taps()
        self.identities = Identities()
        self.client_memory = ClientMemory(client_memory)
        self.held = Held()  # what is kept for clients from one request to the next
        self._served: dict[str, Callable[..., Any]] = {}  # operations of others, by name: see `Server.serve`
        connected = partial(_has, self._peers)  # not `self.has`: what refers to the server keeps a dropped one alive
        self._parked = ParkedRequests(connected, max_parked, max_parked_per_client)
        self._calls = Calls(connected)
        self._of_storages: dict[str, StorageOperations] = {}
        self._added_stats = AddedStats()
        # Of large answers. They begin anywhere, so that a client never takes a piece of this server for one of the server that was here before.
        self._answer_numbers = itertools.count(secrets.randbits(48))
        self._lock = threading.Lock()  # it guards _peers and is held only briefly
        self._publishing = Publishing()
        self._source: WeightsSource | None = None
        self._draining = False
        self._observers = observers

    def peers(self) -> list[Peer]:
        """The connected clients, oldest first. Each has its counts, its weights' version and its state. A worker that writes into several tables
        is one of them, whose `connections` are those to its tables."""
        self._check_process()
        for listener in list(self._listeners):
            listener.peers()  # native transports update their Peer objects here
        with self._lock:
            return workers_of(self._peers.values())

    def receipts(self) -> Receipts:
        """How many clients hold which weights: `{(version, digest): clients}`. It includes those that servers with `weights_from` reported, which
        may be a second old for each server on the way. Clients that have no weights are not counted."""
        return receipts_of(self.peers())

    @property
    def draining(self) -> bool:
        """Whether `drain` was called."""
        return self._draining

    @property
    def learner_id(self) -> str:
        """What `Weights.learner` is in weights that this server publishes: 16 hex digits, new for every server."""
        return self._publishing.learner

    def pass_on(self, packed: PackedWeights) -> None:
        """Offer the weights of another learner, with their number, unless these or newer ones of it were offered. `weights_from` does this."""
        self._check_process()
        self._publishing.pass_on(packed, self.storages.values())

    def _path(self) -> list[list[str]]:
        """The id and the address of this server, then those of the servers from which its weights come."""
        listener = next(iter(self._listeners), None)
        where = "a server that does not listen" if listener is None else str(listener.address)
        return [[self._publishing.learner, where], *(() if self._source is None else self._source.path)]

    def has(self, peer: Peer) -> bool:
        """Whether this client is connected."""
        return _has(self._peers, peer)

    def _tokens(self) -> tuple[tokens.Token, ...]:
        if self._token_source is None:
            self._token_source = tokens.TokenSource(self._token)
        return self._token_source()

    def _peer_connected(self, peer: Peer) -> None:
        with self._lock:
            # Statistics and messages identify clients by name, so two clients of one process or script need different names.
            mine = next(iter(self._owners.get(peer.owner, {}).values()), None)
            if mine is not None:
                peer.name = mine.name
            elif self._taken(peer.name, peer):
                peer.name = next(name for n in itertools.count(2) if not self._taken(name := f"{peer.name}#{n}", peer))
            if peer.memory is None:
                self.held.open(peer, self.client_memory)
            peer.memory.name = peer.name  # type: ignore[union-attr]
            self._peers[id(peer)] = peer
            self._names.setdefault(peer.name, {})[id(peer)] = peer
            if peer.role == "worker":
                self._owners.setdefault(peer.owner, {})[id(peer)] = peer
            self._count_workers()
        if peer.role == "worker":
            self._storage(peer.table or None).peer_here(peer)
        if mine is None:
            _log.info("%s %s connected from %s", peer.role, peer.name, peer.address)
            discovery.notify(self._observers, "echo_peer_connected", peer=peer)

    def _peer_lost(self, peer: Peer, reason: str) -> None:
        with self._lock:
            self._peers.pop(id(peer), None)
            _remove(self._names, peer.name, peer)
            _remove(self._owners, peer.owner, peer)
            self._count_workers()
            workers = [other.id for other in self._peers.values() if other.role == "worker"]
            left = peer.owner not in self._owners
        self.held.forget(peer)
        self._parked.forget(peer)
        self._calls.forget(peer, left)
        for storage in self.storages.values():  # only after it was removed from the peers: see _drawn in echo_replay/requests/draws.py
            storage.peer_gone(id(peer), peer.id if peer.role == "worker" else None, workers)
        what = "left" if left else f"lost its connection to table {peer.table!r}"
        if left or reason:
            _log.log(logging.WARNING if reason else logging.INFO, "%s %s %s%s", peer.role, peer.name, what, f": {reason}" if reason else "")
        if left:
            discovery.notify(self._observers, "echo_peer_lost", peer=peer, reason=reason)

    def _taken(self, name: str, peer: Peer) -> bool:
        """Whether another client than that of `peer` has this name. `_lock` is held."""
        return any(other.id != peer.id for other in self._names.get(name, {}).values())

    def _count_workers(self) -> None:
        """Tell the storages how many workers are connected. `_lock` is held."""
        for storage in self.storages.values():
            storage.count_workers(len(self._owners))


def _has(peers: dict[int, Peer], peer: Peer) -> bool:
    return any(peers.get(id(each)) is each for each in peer.connections or (peer,))


def _remove(peers: dict[Any, dict[int, Peer]], key: Hashable, peer: Peer) -> None:
    """Remove `peer` from those with this key, if it is there, and the key with its last peer."""
    found = peers.get(key, {})
    if found.pop(id(peer), None) is not None and not found:
        del peers[key]

"""The state of a server: its peers, weights and listeners. The parts of `Server` in this folder share it."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ..base.memory.client_memory import ClientMemory
from ..plugins import discovery
from ..security import tokens
from ..store.steps.step_table import StepTable
from ..store.steps.steps import client_number
from ..store.store import Store
from ..wire.identity import Identities
from ..wire.peer import Peer
from ..wire.transport import Listener
from .held import Held
from .requests.calls import Calls
from .requests.carried_out import CarriedOut
from .requests.parked import MOST_PARKED, MOST_PARKED_PER_CLIENT, ParkedRequests
from .requests.waiting_line import Lines
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
    """A store and its connected clients. `Server` adds start and close, batches, checkpoints and publishing."""

    _operations: ClassVar[Mapping[str, Callable[..., Any]]]  # by name; clients call them by `request()`

    def __init__(
        self,
        token: tokens.Explicit,
        observers: pluggy.PluginManager,
        client_memory: int | None = None,
        max_parked: int = MOST_PARKED,
        max_parked_per_client: int = MOST_PARKED_PER_CLIENT,
    ) -> None:
        self._token = token
        self._token_source: tokens.TokenSource | None = None
        self._listeners: list[Listener] = []
        self._peers: dict[int, Peer] = {}
        self._taps = Taps()
        self.identities = Identities()
        self.client_memory = ClientMemory(client_memory)
        self._held = Held()
        self._served: dict[str, Callable[..., Any]] = {}  # operations of others, by name: see `Server.serve`
        connected = partial(_has, self._peers)  # not `self.has`: what refers to the server keeps a dropped one alive
        self._parked = ParkedRequests(connected, max_parked, max_parked_per_client)
        self._calls = Calls(connected)
        self._lines = Lines()
        self._carried_out = CarriedOut()
        self._ended = CarriedOut()  # of requests that end items. There are many, so they must not push out the others
        self._added_stats = AddedStats()
        # Of large answers. They begin anywhere, so that a client never takes a piece of this server for one of the server that was here before.
        self._answer_numbers = itertools.count(secrets.randbits(48))
        self._lock = threading.Lock()  # it guards _peers and is held only briefly
        self._publishing = Publishing()
        self._source: WeightsSource | None = None
        self._draining = False
        self._observers = observers

    def peers(self) -> list[Peer]:
        """The connected workers, oldest first. Each has its counts, its weights' version and its state."""
        for listener in list(self._listeners):
            listener.peers()  # native transports update their Peer objects here
        with self._lock:
            return sorted(self._peers.values(), key=lambda peer: peer.connected_at)

    def receipts(self) -> Receipts:
        """How many clients hold which weights: `{(version, digest): clients}`. It includes those that servers with `weights_from` reported, which
        may be a second old for each server on the way. Clients that have no weights are not counted."""
        return receipts_of(self.peers())

    @property
    def learner_id(self) -> str:
        """What `Weights.learner` is in weights that this server publishes: 16 hex digits, new for every server."""
        return self._publishing.learner

    def pass_on(self, packed: PackedWeights) -> None:
        """Offer the weights of another learner, with their number, unless these or newer ones of it were offered. `weights_from` does this."""
        self._publishing.pass_on(packed, self.tables.values())

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
            taken = {other.name for other in self._peers.values() if other.id != peer.id}
            if peer.name in taken:
                peer.name = next(name for n in itertools.count(2) if (name := f"{peer.name}#{n}") not in taken)
            if peer.memory is None:
                self._held.open(peer, self.client_memory)
            peer.memory.name = peer.name  # type: ignore[union-attr]
            self._peers[id(peer)] = peer
            self._count_workers(sum(p.role == "worker" for p in self._peers.values()))
        _log.info("%s %s connected from %s", peer.role, peer.name, peer.address)
        discovery.notify(self._observers, "echo_peer_connected", peer=peer)

    def _peer_lost(self, peer: Peer, reason: str) -> None:
        with self._lock:
            self._peers.pop(id(peer), None)
            workers = [other for other in self._peers.values() if other.role == "worker"]
            self._count_workers(len(workers))
            # Ids can be given by hand, so others may have it: clients that send nothing, and connections to another table.
            steps_end = peer.role == "worker" and all(client_number(other.id) != client_number(peer.id) for other in workers)
        self._held.forget(peer)
        self._parked.forget(peer)
        self._calls.forget(peer)
        for table in self.tables.values():
            if steps_end and isinstance(table, StepTable):
                table.end_streams(peer.id)
            if table.lease_timeout is not None:
                table.take_back(id(peer))  # only after it was removed from the peers: see _drawn in operations/draws.py
        _log.log(logging.WARNING if reason else logging.INFO, "%s %s left%s", peer.role, peer.name, f": {reason}" if reason else "")
        discovery.notify(self._observers, "echo_peer_lost", peer=peer, reason=reason)


def _has(peers: dict[int, Peer], peer: Peer) -> bool:
    return peers.get(id(peer)) is peer

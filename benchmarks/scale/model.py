"""The load of the busiest server of a job with many workers, calculated from measured constants. Nothing is measured here.

Workers are spread evenly over the servers (shards). One core of a server does its work, because `num_threads` is 1 by default. Each load is compared with
its limit: the constant whose load is the largest part of its limit breaks first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf

MOST = 1 << 24  # workers or shards, where the search for a limit ends


@dataclass(frozen=True)
class Constants:
    """The measured abilities of a machine, over TCP on loopback. Rates are for each second of CPU time of the server."""

    handshake_server: float  # CPU seconds of a connection that is made
    handshake_client: float
    memory_server: float  # bytes of a process, for each connection
    memory_client: float
    descriptors_server: float  # for each connection
    descriptors_client: float
    threads_client: float
    idle_server: float  # CPU seconds of the server in a second, for each connection that does nothing
    weights: float  # bytes sent to workers
    inserts: float  # items of `item_bytes` taken into a replay table
    draws: float  # the same items drawn by a remote learner, in batches of 256
    requests: float  # requests that draw a single item
    item_bytes: int


@dataclass(frozen=True)
class Job:
    """What the workers do, and what a server has. The limits are Echo's defaults, except for the hardware."""

    weights_bytes: float = 100e6
    version_every: float = 30.0  # seconds between two versions
    items: float = 10.0  # a second, that a worker sends
    requests: float = 1.0  # a second, in which a worker draws one item (a task)
    connections: int = 2  # of a worker: one for each table that it uses (tasks and rollouts)
    node_workers: int = 64  # on a machine, which share a relay
    network: float = 1.17e9  # bytes a second: 10 Gb/s
    memory: float = 32e9  # of a server, for connections
    kernel_memory: float = 6.3e6  # that one connection holds when the server does not read: the usual most of tcp_rmem
    max_connections: int = 4096
    descriptors: int = 1024  # the usual soft limit (ulimit -n)
    connection_rate: float = 250.0  # max_connection_rate; four times as many may come at once
    patience: float = 30.0  # seconds in which a worker tries to come back


@dataclass(frozen=True)
class Load:
    """One quantity at the busiest process of a job."""

    key: str
    title: str
    amount: float
    limit: float
    unit: str
    remedy: str
    relayed: bool | None = None  # True: only with relays; False: only without; None: in both

    @property
    def use(self) -> float:
        """The part of the limit that is used; above 1, it breaks."""
        return self.amount / self.limit


def loads(constants: Constants, job: Job, workers: int, shards: int) -> list[Load]:
    """Every quantity with `workers` workers on `shards` servers.

    Raises:
        ValueError: there are no workers or no shards.
    """
    if workers < 1 or shards < 1:
        raise ValueError(f"workers and shards must be at least 1, not {workers} and {shards}")
    own = ceil(workers / shards)  # workers of the busiest server
    nodes = ceil(own / job.node_workers)
    connections = own * job.connections
    arriving = own * job.items
    a_version = job.weights_bytes / job.version_every  # bytes a second that one receiver costs
    together = 4 * job.connection_rate
    waiting = max(0.0, connections - together) / job.connection_rate if job.connection_rate else 0.0
    memory = "receive_buffer=262144 above 500 connections"
    relays, shard = "relays: one for each node of workers", "more shards"
    return [
        Load("weights-network", "weights straight to workers: network", own * a_version, job.network, "B/s", relays, False),
        Load("weights-cpu", "weights straight to workers: CPU", own * a_version / constants.weights, 1.0, "cores", relays, False),
        Load("relays-network", "weights through relays: network", nodes * a_version, job.network, "B/s", "a tree of relays", True),
        Load("relays-cpu", "weights through relays: CPU", nodes * a_version / constants.weights, 1.0, "cores", "a tree of relays", True),
        Load("learner-weights", "learner's weights to all shards: network", shards * a_version, job.network, "B/s", "a tree of relays"),
        Load("connections", "connections", connections, job.max_connections, "", "raise max_connections, or more shards"),
        Load("descriptors", "descriptors", connections * constants.descriptors_server, job.descriptors, "", "raise the limit (ulimit -n, LimitNOFILE)"),
        Load("memory", "memory of idle connections", connections * constants.memory_server, job.memory, "B", shard),
        Load("memory-full", "memory while the server does not read", connections * (constants.memory_server + job.kernel_memory), job.memory, "B", memory),
        Load("door", "all reconnect: wait at the door", waiting, job.patience, "s", "raise max_connection_rate, or timeout of the workers"),
        Load("handshakes", "all reconnect: CPU of handshakes", connections * constants.handshake_server, job.patience, "s", shard),
        Load("idle", "idle connections: CPU", connections * constants.idle_server, 1.0, "cores", shard),
        Load("experience-network", "experience in: network", arriving * constants.item_bytes, job.network, "B/s", shard),
        Load("experience-cpu", "experience in: CPU", arriving / constants.inserts, 1.0, "cores", f"num_threads, or {shard}"),
        Load("requests", "draws of single items (tasks): CPU", own * job.requests / constants.requests, 1.0, "cores", "larger draws, or more shards"),
        Load("draws", "learner draws all that comes: CPU of a server", arriving / constants.draws, 1.0, "cores", shard),
        Load(
            "intake", "one learner takes all that comes: network", workers * job.items * constants.item_bytes, job.network, "B/s", "several learners, or replay"
        ),
    ]


def first(found: Iterable[Load], relays: bool) -> Load:
    """The quantity that is nearest to its limit or furthest beyond it, with relays or without them."""
    return max((load for load in found if load.relayed in (None, relays)), key=lambda load: load.use)


def breaking(constants: Constants, job: Job, key: str) -> float:
    """The most workers on one server with which the quantity `key` is within its limit, or of "learner-weights" the most shards; infinite above 16 million.

    Raises:
        KeyError: there is no such quantity.
    """

    def fits(count: int) -> bool:
        found = loads(constants, job, count, count if key == "learner-weights" else 1)
        return {load.key: load for load in found}[key].use <= 1

    if fits(MOST):
        return inf
    low, high = 0, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low

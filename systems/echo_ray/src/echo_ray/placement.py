"""Where shards and workers run: each shard with its share of the workers on one node, which is a bundle of a placement group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from echo_cluster.launching.plan import Plan
from echo_core import ConfigError, EchoTimeoutError

from .calls import NAMESPACE, name_of
from .shard import ShardActor
from .workers import WorkersActor

__all__ = ["Placement", "Room", "room_for"]

SHARD_CPUS = 1.0


@dataclass(frozen=True)
class Room:
    """How workers are divided among nodes.

    Attributes:
        beside: pools that are placed with a shard each, or alone if there are no shards.
        each: the most workers of one pool.
    """

    beside: int
    each: int

    def pools(self, n: int) -> int:
        """How many pools n workers need: those beside shards always, and others if these are full."""
        return max(self.beside, math.ceil(n / self.each))

    def divided(self, n: int) -> list[int]:
        """How many workers each pool has."""
        pools = self.pools(n)
        return [n // pools + (number < n % pools) for number in range(pools)]


def room_for(plan: Plan) -> Room:
    """How the workers of a plan are divided. Pools beside shards share them evenly."""
    if plan.worker is None:
        return Room(0, 1)
    if not plan.shards:
        each = min(plan.workers.per_node, plan.workers.most)
        return Room(max(1, math.ceil(plan.n / each)), each)
    each = max(1, min(plan.workers.per_node, math.ceil(plan.workers.most / plan.shards)))
    return Room(plan.shards, each)


class Placement:
    """The actors of a cluster, and the placement group that they run in.

    Attributes:
        shards, pools: handles of actors, by number.
    """

    def __init__(self, plan: Plan, mark: str, timeout: float) -> None:
        self._plan, self._mark, self.room = plan, mark, room_for(plan)
        self._refuse_second()
        self.shards: list[Any] = []
        self.pools: list[Any] = []
        cpus = (SHARD_CPUS if plan.shards else 0.0) + self._pool_cpus
        bundle = {"CPU": cpus} if cpus else {"CPU": 0.001}  # a bundle must not be empty
        self._group: PlacementGroup = placement_group([bundle] * max(plan.shards, self.room.beside), strategy="SPREAD")
        if not self._group.wait(timeout):
            remove_placement_group(self._group)
            raise EchoTimeoutError(
                f"cluster {plan.name}: Ray has found no room within {timeout:g} s for {max(plan.shards, self.room.beside)} bundles with {cpus:g} CPUs each "
                f"(1 of a shard, and {plan.workers.cpus:g} of each of {self.room.each if plan.worker else 0} workers); the nodes of Ray have "
                f"{ray.cluster_resources().get('CPU', 0):g} CPUs, {ray.available_resources().get('CPU', 0):g} of them free. Lower max, per_node or cpus in "
                "[cluster] workers, or add nodes"
            )
        for number in range(plan.shards):
            self.shards.append(self._actor(ShardActor, "shard", number, SHARD_CPUS, number))
        for _ in range(self.room.beside):
            self._add_pool()

    @property
    def _pool_cpus(self) -> float:
        return self.room.each * self._plan.workers.cpus if self.room.beside else 0.0

    def _refuse_second(self) -> None:
        kind = "shard" if self._plan.shards else "workers"
        try:
            ray.get_actor(name_of(self._plan.name, kind, 0), namespace=NAMESPACE)
        except ValueError:
            return
        raise ConfigError(f"a cluster named {self._plan.name!r} runs on this Ray cluster already; end it (echoctl ray down), or give another name=")

    def _actor(self, cls: type[Any], kind: str, number: int, cpus: float, argument: int) -> Any:
        beside = number < max(self._plan.shards, self.room.beside)
        strategy: Any = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number) if beside else "SPREAD"
        options = {
            "name": name_of(self._plan.name, kind, number),
            "namespace": NAMESPACE,
            "num_cpus": cpus,
            "max_restarts": -1,
            "max_concurrency": 8,  # a look is answered while a drain is under way
            "scheduling_strategy": strategy,
        }
        return ray.remote(cls).options(**options).remote(self._plan, argument, self._mark)

    def _add_pool(self) -> None:
        number = len(self.pools)
        self.pools.append(self._actor(WorkersActor, "workers", number, self._pool_cpus, number * self.room.each))

    def pools_for(self, n: int) -> bool:
        """Start more pools if n workers need them. Returns whether some were started."""
        before = len(self.pools)
        while len(self.pools) < self.room.pools(n):
            self._add_pool()
        return len(self.pools) > before

    def remove(self) -> None:
        """End all actors, at once."""
        for actor in [*self.pools, *self.shards]:
            ray.kill(actor)
        remove_placement_group(self._group)

"""The members of a cluster on Ray, for clients in the driver: the last reports of the shards' actors, which can be read while Ray is broken."""

from __future__ import annotations

import threading
from typing import Any

from echo_cluster import Member
from echo_core import Address

__all__ = ["KnownMembers"]


class KnownMembers:
    """The members of a cluster, as `ClusterLearner` and `ClusterClient` take them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: dict[int, Member] = {}

    def told(self, number: int, look: dict[str, Any]) -> None:
        """What the actor of shard `number` says. A shard that is being started again stays at its last address, which usually stays the same."""
        with self._lock:
            if look["state"] in ("draining", "drained", "ended"):
                self._members.pop(number, None)
            elif look["addresses"]:
                self._members[number] = Member(f"shard-{number}", tuple(map(Address.parse, look["addresses"])), look["host"])

    def __call__(self) -> list[Member]:
        with self._lock:
            return [self._members[number] for number in sorted(self._members)]

    def shown(self) -> dict[int, tuple[tuple[str, ...], str]]:
        """Addresses and host by number, for `WorkersActor.keep`."""
        with self._lock:
            return {number: (tuple(map(str, member.addresses)), member.host) for number, member in self._members.items()}

    def __repr__(self) -> str:
        return f"<members: {', '.join(member.name for member in self()) or 'none yet'}>"

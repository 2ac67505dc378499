"""The Ray actor of a node's workers. They are processes of their own, because an actor for each would cost 60 to 80 MB more."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from echo_cluster import announce
from echo_cluster.launching.plan import Plan
from echo_cluster.launching.pool import WorkerPool

from .shard import folder_of, remove_empty

__all__ = ["WorkersActor"]


class WorkersActor:
    """A `WorkerPool` in an actor of Ray. Its workers find the shards in a folder of this node, which the driver keeps up to date through this actor.

    Args:
        plan: of the cluster, with its token.
        first: the number of the first worker.
        mark: tells this cluster from earlier ones of the same name.
    """

    def __init__(self, plan: Plan, first: int, mark: str) -> None:
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
        assert plan.worker is not None
        self._folder = folder_of(plan.name, mark) / f"workers-{first}"
        shutil.rmtree(self._folder, ignore_errors=True)  # that of a former life
        members = f"file://{self._folder}" if plan.shards else None
        self._pool = WorkerPool(plan.worker, name=plan.name, members=members, token=plan.token, restarts=plan.workers.restarts, first=first)
        self._known: dict[int, tuple[tuple[str, ...], str]] = {}

    def keep(self, n: int, shards: dict[int, tuple[tuple[str, ...], str]]) -> dict[str, Any]:
        """Have n workers, and tell them where the shards are: addresses and host by number. Returns `WorkerPool.figures`."""
        for number, (addresses, host) in shards.items():
            if self._known.get(number) != (addresses, host):
                announce(self._folder, number, addresses, host)
        for number in self._known.keys() - shards.keys():
            Path(self._folder, f"shard-{number}").unlink(missing_ok=True)
        self._known = dict(shards)
        self._pool.set(n)
        return self._pool.figures()

    def look(self) -> dict[str, Any]:
        """`WorkerPool.figures`."""
        return self._pool.figures()

    def stop(self, timeout: float) -> None:
        """Let the workers leave; kill those that have not after `timeout` seconds."""
        self._pool.close(timeout)
        for path in self._folder.glob("*"):
            path.unlink()
        remove_empty(self._folder)

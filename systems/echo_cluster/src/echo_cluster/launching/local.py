"""`[cluster] via = "local"`: shards and workers are processes of this machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from echo_core import EchoError
from echo_core.config.config import Config

from ..testing import LocalCluster
from .launched import LaunchedCluster
from .plan import Plan, plan_of
from .pool import WorkerPool

if TYPE_CHECKING:
    from echo_core import Table

__all__ = ["LocalLaunched", "up"]

_log = logging.getLogger("echo")

PAUSES = (0.0, 1.0, 2.0, 5.0, 15.0, 30.0)  # seconds before a shard is started again that has died so often within a minute
FORGET_SECONDS = 60.0


def up(
    config: Config,
    worker: Any = None,
    *,
    shards: int | None = None,
    workers: int | None = None,
    tables: Sequence[Table] | None = None,
    token: Any = None,
    name: str = "echo",
) -> LocalLaunched:
    """Start shards and workers on this machine; see `echo_core.config.launching.launch`."""
    return LocalLaunched(plan_of(config, worker, shards=shards, workers=workers, tables=tables, token=token, name=name))


class LocalLaunched(LaunchedCluster):
    """Shards of a `LocalCluster`, and a `WorkerPool`."""

    def __init__(self, plan: Plan) -> None:
        self._cluster: LocalCluster | None = None
        self._pool: WorkerPool | None = None
        self._drained: set[int] = set()
        self._deaths: dict[int, list[float]] = {}  # by shard: when it died within the last minute
        self._dead_since: dict[int, float] = {}
        if plan.shards:
            self._cluster = LocalCluster(
                plan.shards,
                plan.tables,
                checkpoint_every=plan.checkpoint_every,
                transports=[plan.listen.replace("{node}", "127.0.0.1")],
                token=plan.token,
                checkpoints=plan.checkpoint,
                server=plan.server,
            )
        super().__init__(plan, None if self._cluster is None else self._cluster.members)
        self._at_exit = Finalize(None, self.down, exitpriority=2)  # a program that does not call it ends all the same; before `LocalCluster.close`
        if plan.worker is not None:
            self._pool = WorkerPool(plan.worker, name=plan.name, members=self.members, token=plan.token, restarts=plan.workers.restarts)
            self._pool.set(plan.n)
        self._begin_upkeep()

    def _keep(self) -> None:
        if self._pool is not None:
            self._pool.set(self._wanted)
        if self._cluster is not None:
            self._restart_dead(self._cluster)

    def _restart_dead(self, cluster: LocalCluster) -> None:
        """Start shards again that have died, after a pause that grows if one dies again and again."""
        now = time.monotonic()
        for number, process in enumerate(cluster.processes):
            if process.exitcode in (None, 0) or number in self._drained:
                continue
            if number not in self._dead_since:
                self._dead_since[number] = now
                self._deaths[number] = [*(at for at in self._deaths.get(number, []) if now - at < FORGET_SECONDS), now]
            if now - self._dead_since[number] >= PAUSES[min(len(self._deaths[number]), len(PAUSES)) - 1]:
                _log.warning("shard %d of cluster %s has ended with exit code %s, and is started again", number, self.plan.name, process.exitcode)
                cluster.restart(number, wait=False)
                del self._dead_since[number]

    def _pools(self) -> list[dict[str, Any]]:
        return [] if self._pool is None else [self._pool.figures()]

    def _drain(self, shard: int) -> None:
        with self._lock:
            self._drained.add(shard)
        assert self._cluster is not None
        if self._cluster.processes[shard].is_alive():  # else it was drained before, or has died, and is not started again
            self._cluster.drain(shard)

    def _shards(self) -> list[dict[str, Any]]:
        rows = {row["shard"]: row for row in super()._shards()}
        for number in range(self.plan.shards):
            name = f"shard-{number}"
            down = {"shard": name, "address": "", "state": "down", "workers": 0, "tables": {}, "error": self._why_down(number)}
            row = rows.setdefault(name, down)
            if number in self._drained:
                row["state"], row["error"] = "drained", ""
        return [rows[name] for name in sorted(rows, key=lambda name: int(name.rpartition("-")[2]))]

    def _why_down(self, number: int) -> str:
        """Why the members do not name a shard."""
        code = None if self._cluster is None else self._cluster.processes[number].exitcode
        if self._over.is_set():
            return "down() has ended it"
        if code is None:
            return "its process is being started"
        return "it has ended with the job" if code == 0 else f"it has ended with exit code {code}, and is started again"

    def _end(self, timeout: float) -> None:
        ends = time.monotonic() + timeout
        with ExitStack() as then:  # each step is done even if Ctrl-C has interrupted the one before it
            if self._cluster is not None:
                then.callback(self._cluster.close)
                then.callback(self._drain_all, self._cluster, ends)
            if self._pool is not None:
                self._pool.close(timeout)
        self._at_exit.cancel()

    def _drain_all(self, cluster: LocalCluster, ends: float) -> None:
        for number, process in enumerate(cluster.processes):
            if process.is_alive():
                try:
                    cluster.drain(number, max(0.1, ends - time.monotonic()))
                except EchoError as error:
                    _log.warning("%s; it is killed", error)

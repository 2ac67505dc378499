"""What all launchers have in common: learners and clients of the cluster, its status, and the number of workers, which follows who waits."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import Any

from echo_core import ClosedError, ConfigError, EchoError
from echo_core.base.plural import counted

from ..client import ClusterClient
from ..draw import ClusterSample
from ..learner import ClusterLearner
from ..looks import look_at_all
from ..members import find_members
from .plan import Plan
from .scaling import Scaling, waits

__all__ = ["LaunchedCluster"]

_log = logging.getLogger("echo")

KEEP_SECONDS = 0.25  # between two looks at processes
LOOK_SECONDS = 1.0  # between two looks at who waits
ANSWER_SECONDS = 2.0  # in which a shard must answer
LONG_DRAW_SECONDS = 0.1  # a draw that takes longer waits for items


class LaunchedCluster(ABC):
    """Shards and workers that were started together; see `echo_core.config.launching.Launched`.

    A launcher derives from it, calls `_begin_upkeep` when all is started, and says how its processes are.

    Attributes:
        members: where the shards are.
        token: the secret of the cluster. The repr does not show it.
    """

    def __init__(self, plan: Plan, members: Any) -> None:
        self.plan, self.members, self.token = plan, members, plan.token
        self._find = find_members(members) if plan.shards else list  # once, because it remembers which files it has complained of
        self._wanted = plan.n
        self._scaling = Scaling(plan.workers.min, plan.workers.most) if plan.scales else None
        self._learners: list[_Learner] = []
        self._over = threading.Event()
        self._ended = False  # under the lock: whether `_end` has returned
        self._lock = threading.RLock()
        self._watching = threading.Thread(target=self._watch, name="echo-launched", daemon=True)

    # ---- what a launcher does --------------------------------------------------------------------------------------------

    @abstractmethod
    def _keep(self) -> None:
        """Start again what has died, and have `self._wanted` workers. It is called several times a second, and may raise EchoError and OSError."""

    @abstractmethod
    def _pools(self) -> list[dict[str, Any]]:
        """The figures of every `WorkerPool`."""

    @abstractmethod
    def _drain(self, shard: int) -> None: ...

    @abstractmethod
    def _end(self, timeout: float) -> None:
        """Let workers leave, drain shards, end everything. It is called again if it was interrupted."""

    def _notes(self) -> list[str]:
        """What a person should know, in sentences."""
        return []

    def _begin_upkeep(self) -> None:
        self._watching.start()

    # ---- for everybody ---------------------------------------------------------------------------------------------------

    def learner(self, example: Any, **options: Any) -> ClusterLearner:
        """A learner that draws from all shards; options are those of `ClusterLearner`. Its `close()` ends the job.

        Raises:
            ConfigError: the cluster has no shards.
        """
        self._open("learner")
        learner = _Learner(self.members, example, **{"token": self.token, **options})
        self._learners.append(learner)
        return learner

    def client(self, example: Any, **options: Any) -> ClusterClient:
        """A worker's connection to the shards, from this process; options are those of `ClusterClient`."""
        self._open("client")
        return ClusterClient(self.members, example, **{"token": self.token, **options})

    def scale(self, workers: int) -> None:
        """Have so many workers from now on, and no longer by who waits. Those that are too many leave.

        Raises:
            ConfigError: the cluster has no worker to run, or the number is above `[cluster] workers.max`.
        """
        if self.plan.worker is None:
            raise ConfigError("this cluster was started without a worker, so it has none to run; give worker= when it is started")
        if isinstance(workers, bool) or not isinstance(workers, int) or not 0 <= workers <= self.plan.workers.most:
            raise ConfigError(f"workers must be a whole number from 0 to {self.plan.workers.most}, which is [cluster] workers.max, not {workers!r}")
        self._scaling = None
        self._wanted = workers

    def drain(self, shard: int) -> None:
        """Take one shard out of service, for good: its workers move, and it writes a checkpoint.

        Raises:
            ConfigError: there is no such shard. EchoTimeoutError: it takes too long.
        """
        if isinstance(shard, bool) or not isinstance(shard, int) or not 0 <= shard < self.plan.shards:
            raise ConfigError(f"shard must be a number from 0 to {self.plan.shards - 1}, not {shard!r}")
        self._drain(shard)

    def status(self) -> dict[str, Any]:
        """How shards and workers are, as JSON has it. A shard that does not answer is "down", one that refuses this process "refused", and "error" says
        why."""
        pools = self._pools()
        return {
            "name": self.plan.name,
            "shards": self._shards(),
            "workers": {
                "wanted": self._wanted,
                "running": sum(len(pool["running"]) for pool in pools),
                **{key: sum(pool[key] for pool in pools) for key in ("leaving", "done", "restarted")},
                "fault": "; ".join(pool["fault"] for pool in pools if pool["fault"]),
            },
            "notes": self._notes(),
        }

    def check(self) -> None:
        """Raise EchoError if workers have died more often than they may."""
        faults = [pool["fault"] for pool in self._pools() if pool["fault"]]
        if faults:
            raise EchoError(f"cluster {self.plan.name}: {'; '.join(faults)}")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every worker has ended by itself. Returns False if that takes longer than `timeout` seconds. Raises as `check`."""
        ends = None if timeout is None else time.monotonic() + timeout
        while not self._over.is_set():
            self.check()
            if self._wanted and sum(pool["done"] for pool in self._pools()) >= self._wanted:
                return True
            if ends is not None and time.monotonic() > ends:
                return False
            self._over.wait(0.1)
        return True

    def down(self, timeout: float = 30.0) -> None:
        """Let the workers leave, drain the shards, and end all processes: after `timeout` seconds by killing them. Idempotent. If Ctrl-C
        interrupts it, the next call ends what is left."""
        self._over.set()
        if self._watching.ident is not None and self._watching is not threading.current_thread():
            self._watching.join()
        with self._lock:
            if not self._ended:
                self._end(timeout)
                self._ended = True

    @property
    def closed(self) -> bool:
        """Whether `down` was called."""
        return self._over.is_set()

    def __enter__(self) -> LaunchedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.plan.name}: {counted(self.plan.shards, 'shard')}, {counted(self._wanted, 'worker')}>"

    # ---- upkeep ----------------------------------------------------------------------------------------------------------

    def _open(self, what: str) -> None:
        if self._over.is_set():
            raise ClosedError(f"cluster {self.plan.name} is down")
        if not self.plan.shards:
            raise ConfigError(f"cluster {self.plan.name} has workers only, so there are no shards for a {what}")

    def _shards(self) -> list[dict[str, Any]]:
        return look_at_all(self._find(), ANSWER_SECONDS, self.token)

    def _watch(self) -> None:
        looked, said = time.monotonic(), ""
        while not self._over.wait(KEEP_SECONDS):
            try:
                with self._lock:
                    self._keep()
                if self._scaling is not None and time.monotonic() - looked >= LOOK_SECONDS:
                    looked = time.monotonic()
                    self._scale_by_who_waits(looked)
                said = ""
            except Exception as error:  # this thread must not end: nobody else starts again what dies
                if str(error) != said:  # once for each error
                    said = str(error)
                    _log.warning("cluster %s: %s", self.plan.name, error)

    def _scale_by_who_waits(self, now: float) -> None:
        scaling = self._scaling
        learner, blocked = waits(self._shards())
        learner = learner or any(one.waits() for one in self._learners)
        if scaling is not None and (wanted := scaling.look(now, learner, blocked, self._wanted)) != self._wanted:
            why = "its learner waits" if wanted > self._wanted else "its workers wait for the learner"
            _log.info("cluster %s has %s from now on, not %d, because %s", self.plan.name, counted(wanted, "worker"), self._wanted, why)
            self._wanted = wanted


class _Learner(ClusterLearner):
    """A ClusterLearner that says whether it waits for items: while all shards are empty, no shard knows that it does."""

    _since: float | None = None

    def sample(self, n: int, timeout: float | None = None, *, beta: float | None = None) -> ClusterSample:
        """See `ClusterLearner.sample`."""
        self._since = time.monotonic()
        try:
            return super().sample(n, timeout, beta=beta)
        finally:
            self._since = None

    def waits(self) -> bool:
        """Whether a draw takes longer than one that finds items."""
        since = self._since
        return since is not None and time.monotonic() - since > LONG_DRAW_SECONDS

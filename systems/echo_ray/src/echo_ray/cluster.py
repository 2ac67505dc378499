"""`up`: the cluster that this process starts and owns. It ends with this process."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from echo_cluster.launching.launched import LaunchedCluster
from echo_cluster.launching.plan import Plan, plan_of
from echo_core import EchoError, EchoTimeoutError
from echo_core.config.config import Config, load

from .calls import Call
from .members import KnownMembers
from .placement import Placement
from .view import shard_rows

if TYPE_CHECKING:
    from echo_core import Table

__all__ = ["Cluster", "ControlStore", "up"]

_log = logging.getLogger("echo")

START_SECONDS = 120.0
SILENT_SECONDS = 3.0  # without an answer, until the view says so


def up(
    config: str | os.PathLike[str] | Mapping[str, Any] | Iterable[Any] | Config,
    worker: Any = None,
    *,
    shards: int | None = None,
    workers: int | None = None,
    tables: Sequence[Table] | None = None,
    token: Any = None,
    name: str = "echo",
    timeout: float = START_SECONDS,
) -> Cluster:
    """Start shards and workers on the Ray cluster that this process is connected to; it connects as `ray.init()` does if it is not yet.

    Args:
        config: a configuration, or what `echo_core.config.config.load` reads. `[cluster] via` is not read.
        worker: a function of one argument, a `WorkerContext`, or a command; see `echo_core.config.launching.launch`, also for the other arguments.
        timeout: seconds until all shards serve, which Ray may need for starting nodes.

    Raises:
        ConfigError: a key or an argument does not fit, or a cluster of this name runs already. EchoError: a shard cannot serve. EchoTimeoutError: Ray
            finds no room, or a shard does not serve in time. The message says why, and nothing is left running.
    """
    from ray import cloudpickle

    if not isinstance(config, Config):
        config = load(*([config] if isinstance(config, (str, os.PathLike, Mapping)) else config))
    plan = plan_of(config, worker, shards=shards, workers=workers, tables=tables, token=token, name=name, dumps=cloudpickle.dumps)
    return Cluster(plan, timeout)


class ControlStore:
    """Asks Ray's control store (gcs_server) now and then whether it is there, on a thread of its own, because a call to one that is dead hangs."""

    def __init__(self) -> None:
        self._answered = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._ask, name="echo-ray-control-store", daemon=True).start()

    def _ask(self) -> None:
        while not self._over.wait(1.0) and ray.is_initialized():  # Ray would connect again by itself
            try:
                ray.nodes()
                self._answered = time.monotonic()
            except Exception as error:  # whatever Ray raises, the answer is missing
                _log.debug("Ray's control store does not answer: %s", error)

    def stop(self) -> None:
        """Ask no more."""
        self._over.set()

    @property
    def silent(self) -> float:
        """For how many seconds it has not answered; 0 if that is not worth a word."""
        seconds = time.monotonic() - self._answered
        return seconds if seconds > SILENT_SECONDS else 0.0


class Cluster(LaunchedCluster):
    """Shards and workers on Ray. `with up(...) as cluster:` ends them.

    It has `learner`, `client`, `scale`, `drain`, `status`, `check`, `wait` and `down`; see `echo_core.config.launching.Launched`. Only this process
    starts again what dies; if it is killed, Ray ends the actors, and the workers leave.
    """

    def __init__(self, plan: Plan, timeout: float = START_SECONDS) -> None:
        self._began_ray = not ray.is_initialized()
        if self._began_ray:
            ray.init(include_dashboard=False, log_to_driver=True)
        self._placement: Placement | None = None
        self._control: ControlStore | None = None
        self._known = KnownMembers()
        self._looks: list[Call] = []
        self._keeps: list[Call] = []
        self._drained: set[int] = set()
        self._wishes: set[str] = set()
        ends = time.monotonic() + timeout
        super().__init__(plan, self._known)
        try:
            self._placement = Placement(plan, secrets.token_hex(4), timeout)
            self._looks = [Call(shard.look) for shard in self._placement.shards]
            self._control = ControlStore()
            self._wait_for_shards(ends, timeout)
        except BaseException:
            self._over.set()
            self._end(5.0)
            raise
        self._begin_upkeep()

    def _wait_for_shards(self, ends: float, timeout: float) -> None:
        while True:
            self._keep()
            looks = [call.answer for call in self._looks]
            if all(look is not None and look["state"] == "serving" for look in looks):
                return
            failed = [(number, look["error"]) for number, look in enumerate(looks) if look is not None and look["state"] == "failed"]
            if failed or time.monotonic() > ends:
                said = [f"shard {number}: {error}" for number, error in failed] or [
                    f"shard {number} is {'being started by Ray' if call.answer is None else call.answer['state']}{call.error and f' ({call.error})'}"
                    for number, call in enumerate(self._looks)
                ]
                if failed:
                    raise EchoError(f"cluster {self.plan.name} does not serve: {'; '.join(said)}")
                raise EchoTimeoutError(f"cluster {self.plan.name} does not serve after {timeout:g} s: {'; '.join(said)}")
            time.sleep(0.1)

    # ---- upkeep ----------------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        placement = self._placement
        if placement is None:
            return
        if not ray.is_initialized():  # it would connect again by itself
            raise EchoError("this process has left Ray (ray.shutdown), which has ended the cluster's processes; call down() before that")
        for number, call in enumerate(self._looks):
            if call.poll() and number not in self._drained:
                self._known.told(number, call.answer)
                self._grant(call.answer["asked"])
        if self.plan.worker is not None and not self._over.is_set():
            placement.pools_for(self._wanted)
            while len(self._keeps) < len(placement.pools):
                self._keeps.append(Call(placement.pools[len(self._keeps)].keep))
            divided = placement.room.divided(self._wanted)
            for number, call in enumerate(self._keeps):
                call.poll(divided[number] if number < len(divided) else 0, self._known.shown())

    def _grant(self, wish: dict[str, Any]) -> None:
        """Do what somebody who is connected has asked for, once."""
        if not wish or wish["id"] in self._wishes:
            return
        self._wishes.add(wish["id"])
        if "workers" in wish:
            self.scale(wish["workers"])
        if "drained" in wish:
            self._drained.add(wish["drained"])
        if wish.get("down"):
            threading.Thread(target=self.down, name="echo-ray-down", daemon=True).start()

    def _pools(self) -> list[dict[str, Any]]:
        return [call.answer for call in self._keeps if call.answer is not None]

    def _notes(self) -> list[str]:
        notes = [f"workers of pool {number} do not answer: {call.error}" for number, call in enumerate(self._keeps) if call.error]
        if self._control is not None and (silent := self._control.silent):
            notes.append(
                f"Ray's control store (gcs_server) has not answered for {silent:.0f} s: what dies now is not started again, and Ray ends all of its "
                "processes, this one too, when it has waited for 60 s (RAY_gcs_rpc_server_reconnect_timeout_s). Until then draws go on"
            )
        return notes

    def _shards(self) -> list[dict[str, Any]]:
        return shard_rows(super()._shards(), self._looks, self._drained)

    # ---- the end ---------------------------------------------------------------------------------------------------------

    def _drain(self, shard: int, timeout: float = 60.0) -> None:
        assert self._placement is not None
        self._drained.add(shard)
        self._known.told(shard, {"state": "draining", "addresses": []})
        under_way = self._placement.shards[shard].drain.remote()
        if not ray.wait([under_way], timeout=timeout)[0]:
            raise EchoTimeoutError(f"shard {shard} was not drained within {timeout:g} s")
        ray.get(under_way)

    def _end(self, timeout: float) -> None:
        ends = time.monotonic() + timeout
        if self._control is not None:
            self._control.stop()
        placement = self._placement
        try:
            if placement is not None and ray.is_initialized():
                try:
                    self._stop([pool.stop.remote(timeout) for pool in placement.pools], "workers", ends)
                    self._stop([shard.stop.remote() for shard in placement.shards], "shards", ends)
                finally:  # Ctrl-C may have interrupted the waits
                    placement.remove()
        finally:
            if self._began_ray:
                ray.shutdown()

    def _stop(self, under_way: list[Any], what: str, ends: float) -> None:
        late = ray.wait(under_way, num_returns=len(under_way), timeout=max(1.0, ends - time.monotonic()))[1] if under_way else []
        if late:
            _log.warning("cluster %s: some %s have not ended in time, and are killed", self.plan.name, what)
        for one in under_way:
            if one not in late:
                try:
                    ray.get(one)
                except RayError as error:
                    _log.warning("cluster %s: some %s are gone: %s", self.plan.name, what, str(error).splitlines()[0])

"""`connect`: the view of a cluster from another process than the one that has started it."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from echo_cluster.launching.launched import LaunchedCluster
from echo_core import ConfigError, EchoError, EchoTimeoutError

from .calls import NAMESPACE, Call, name_of
from .members import KnownMembers
from .view import shard_rows

__all__ = ["Connected", "connect"]

ANSWER_SECONDS = 30.0


def connect(name: str = "echo", timeout: float = ANSWER_SECONDS) -> Connected:
    """A cluster that another process has started by `up`. It connects to Ray as `ray.init()` does, if this process is not connected yet.

    Raises:
        ConfigError: no such cluster with shards runs. EchoTimeoutError: its shards do not answer.
    """
    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=False)
    shards = _actors(name, "shard")
    if not shards:
        raise ConfigError(f"no cluster named {name!r} with shards runs on this Ray cluster; start one by echo_ray.up, or by echoctl ray up")
    under_way = [shard.plan.remote() for shard in shards]
    done = ray.wait(under_way, timeout=timeout)[0]
    if not done:
        raise EchoTimeoutError(f"no shard of cluster {name} has answered within {timeout:g} s")
    return Connected(replace(ray.get(done[0]), scales=False), shards)


def _actors(name: str, kind: str) -> list[Any]:
    found: list[Any] = []
    while True:
        try:
            found.append(ray.get_actor(name_of(name, kind, len(found)), namespace=NAMESPACE))
        except ValueError:
            return found


class Connected(LaunchedCluster):
    """A cluster of another process: `learner`, `client`, `status` and `drain` work as there, and `scale` and `down` ask that process."""

    def __init__(self, plan: Any, shards: list[Any]) -> None:
        self._actors, self._known = shards, KnownMembers()
        self._looks = [Call(shard.look) for shard in shards]
        self._counts: list[Call] = []
        super().__init__(plan, self._known)
        self._wait_for_answers()
        self._begin_upkeep()

    def _wait_for_answers(self) -> None:
        ends = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < ends:
            self._keep()
            if all(call.answer is not None or call.error for call in [*self._looks, *self._counts]):
                return
            time.sleep(0.05)

    def _shards(self) -> list[dict[str, Any]]:
        return shard_rows(super()._shards(), self._looks)

    def _keep(self) -> None:
        if not ray.is_initialized():  # it would connect again by itself
            raise EchoError("this process has left Ray (ray.shutdown), so its view of the cluster has ended; call down() before that")
        for number, call in enumerate(self._looks):
            if call.poll():
                self._known.told(number, call.answer)
        if not self._counts and self.plan.worker is not None:
            self._counts = [Call(pool.look) for pool in _actors(self.plan.name, "workers")]
        for call in self._counts:
            call.poll()

    def _pools(self) -> list[dict[str, Any]]:
        pools = [call.answer for call in self._counts if call.answer is not None]
        self._wanted = sum(pool["wanted"] for pool in pools)
        return pools

    def _notes(self) -> list[str]:
        looks = {number: call for number, call in enumerate(self._looks) if call.error or call.answer["state"] != "serving"}
        return [f"shard {number}: {call.error or call.answer['state']}" for number, call in looks.items()]

    def scale(self, workers: int) -> None:
        """Ask the process that has started the cluster; see `LaunchedCluster.scale`."""
        super().scale(workers)
        self._ask({"workers": workers})

    def _drain(self, shard: int) -> None:
        self._ask({"drained": shard})
        try:
            ray.get(self._actors[shard].drain.remote(), timeout=60.0)
        except ray.exceptions.GetTimeoutError:
            raise EchoTimeoutError(f"shard {shard} was not drained within 60 s") from None
        except RayError as error:
            raise EchoError(f"shard {shard} could not be drained: {str(error).splitlines()[0]}") from error

    def end_cluster(self, timeout: float = 60.0) -> None:
        """Ask the process that has started the cluster to end it, and wait until that is done. Raises EchoTimeoutError."""
        self._ask({"down": True})
        ends = time.monotonic() + timeout
        while _actors(self.plan.name, "shard"):
            if time.monotonic() > ends:
                raise EchoTimeoutError(f"cluster {self.plan.name} has not ended within {timeout:g} s")
            time.sleep(0.2)

    def _ask(self, wish: dict[str, Any]) -> None:
        wish["id"] = secrets.token_hex(8)
        ray.wait([shard.ask.remote(wish) for shard in self._actors], num_returns=len(self._actors), timeout=ANSWER_SECONDS)

    def _end(self, timeout: float) -> None:
        """The cluster goes on; only this view ends."""

"""A worker for a server that optimises: one function is enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from echo_core import EchoError
from echo_core.base.address import Address

from .. import state as states
from ..observations.shared import SharedObservations
from ..strategies.base import Array, Strategy, build
from .evaluation import Eval
from .link import EchoLink

__all__ = ["Evaluate", "run_worker"]

Evaluate = Callable[[Array, int], ArrayLike]


def run_worker(
    address: str | Address,
    evaluate: Evaluate,
    *,
    cores: int = 1,
    experiment: str | None = None,
    observations: SharedObservations | None = None,
    token: str | None = None,
    name: str | None = None,
    reconnect: float = 60.0,
) -> None:
    """Evaluate candidates for an `ESServer` that has a strategy, until its search is over.

    Args:
        address: of the server.
        evaluate: called with candidates, shape (n, dims) with n up to `cores`, and the epoch; returns their n rewards, higher is better. It runs on a
            thread of its own. If it takes long it may ask `echo_es.cancelled()` now and then, and return None if so. For a test of the server its
            candidates are all the same: the parameters that are tested.
        cores: the most candidates at once.
        experiment: the name of the search, if the server has several.
        observations: what `evaluate` adds its observations to, and normalizes with, if the server merges them.
        token: the shared secret. name: this worker's name in logs. reconnect: seconds for which it tries again when the server is lost.

    Raises:
        EchoError: the server refuses, was not reached for `reconnect` seconds, has no strategy, or draws other noise than this process.
        ValueError: `cores` is less than 1, or `evaluate` returned another number of rewards. What `evaluate` raises.
    """
    if cores < 1:
        raise ValueError(f"cores: a worker evaluates at least one individual at a time, so {cores} is not possible")
    link = EchoLink(_Function(evaluate, cores, observations), address, token=token, name=name, reconnect=reconnect, experiment=experiment)
    asyncio.run(link.run())


class _Function:
    """What the wire side needs of a worker, around one function."""

    tests = True

    def __init__(self, evaluate: Evaluate, cores: int, observations: SharedObservations | None) -> None:
        self.cores, self.observations = cores, observations
        self._evaluate = evaluate
        self._description: dict[str, Any] | None = None
        self._strategy: Strategy | None = None
        self._params: dict[str, Array] = {}

    def joined(self, strategy: dict[str, Any] | None, noise: str | None) -> None:
        if strategy is None:
            raise EchoError("this server has no strategy, so its workers optimise: derive a class from echo_es.Worker, or give the server a strategy")
        if strategy == self._description:
            return
        built = build(strategy)
        if built.noise_digest() != noise:
            raise EchoError(
                f"this worker (numpy {np.__version__}) draws other noise than the server, so its rewards would belong to other candidates; "
                "install the same numpy and the same echo-es on both sides"
            )
        self._description, self._strategy = strategy, built

    def welcomed(self, worker: str, population: int, max_epochs: int) -> None: ...

    async def changed(self, state: Any) -> None:
        self._params = state

    def cancel(self) -> None:
        """The function asks `cancelled` itself."""

    async def call_evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]:
        rewards = await asyncio.to_thread(self._drawn, epoch, slices)
        return Eval.from_flat(slices, rewards)

    async def call_test(self, epoch: int, state: bytes, episodes: int) -> list[float]:
        theta = states.unpack(state)
        return await asyncio.to_thread(self._rewards, np.tile(theta, (episodes, 1)), epoch)

    def _drawn(self, epoch: int, slices: list[slice]) -> list[float]:
        assert self._strategy is not None
        return self._rewards(np.concatenate([self._strategy.draw(self._params, part) for part in slices]), epoch)

    def _rewards(self, candidates: Array, epoch: int) -> list[float]:
        rewards = np.asarray(self._evaluate(candidates, epoch), np.float64)
        if rewards.shape != (len(candidates),):
            raise ValueError(f"evaluate was called with {len(candidates)} candidates and returned rewards of shape {rewards.shape}; return one for each")
        flat: list[float] = rewards.tolist()
        return flat

    async def call_stop(self, cancel: bool) -> None: ...

"""A worker for a server that optimises: one function is enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from echo_core import ConfigError, EchoError
from echo_core.base.address import Address

from .. import state as states
from ..arguments import number, real_rewards, whole
from ..observations.shared import SharedObservations
from ..strategies.base import Array, Strategy, build
from .evaluation import Eval, Rewards
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
        address: the address of the server.
        evaluate: called with candidates, shape (n, dims) with n up to `cores`, and the epoch; returns their n rewards, higher is better. It runs on
            the thread that has called this function, so Ctrl-C interrupts it. If it takes long it may ask `echo_es.cancelled()` now and then, and
            return None if so. For a test of the server its candidates are all the same: the parameters that are tested.
        cores: the largest number of candidates that `evaluate` gets at once.
        experiment: the name of the search. It is needed only if the server has several.
        observations: the statistics to which `evaluate` adds its observations, and with which it normalizes them. They are needed only if the server
            merges observations.
        token: the secret that the server and its workers share.
        name: the name of this worker in logs.
        reconnect: for how many seconds it tries to connect again after the connection is lost. At the start it tries for as long, but for at least 5 seconds.

    Raises:
        EchoError: the server refuses, was not reached for `reconnect` seconds, has no strategy, or draws other noise than this process.
        ValueError: an argument is invalid, or `evaluate` returned another number of rewards, or rewards that are not real numbers.
            What `evaluate` raises.
    """
    cores, reconnect = whole("cores", cores, 1), number("reconnect", reconnect, least=0)
    if not callable(evaluate):
        raise ConfigError(f"evaluate must be a function of (thetas, epoch), not {evaluate!r:.80}")
    link = EchoLink(_Function(evaluate, cores, observations), address, token=token, name=name, reconnect=reconnect, experiment=experiment)
    link.run()


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

    def changed(self, state: Any) -> None:
        self._params = state

    def cancel(self) -> None:
        """The function asks `cancelled` itself."""

    def evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]:
        assert self._strategy is not None
        candidates = np.concatenate([self._strategy.draw(self._params, part) for part in slices])
        return Eval.from_flat(slices, self._rewards(candidates, epoch))

    def test(self, epoch: int, state: bytes, episodes: int) -> Rewards:
        theta = states.unpack(state)
        return self._rewards(np.tile(theta, (episodes, 1)), epoch)

    def _rewards(self, candidates: Array, epoch: int) -> Rewards:
        rewards = real_rewards(self._evaluate(candidates, epoch))
        if rewards.shape != (len(candidates),):
            raise ValueError(f"evaluate was called with {len(candidates)} candidates and returned rewards of shape {rewards.shape}; return one for each")
        return rewards

    def stop(self, cancel: bool) -> None: ...

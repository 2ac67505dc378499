"""`Experiment`: one search of a server. It joins the coordinator, the strategy, the log and the results."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from echo_core import CheckpointError, ConfigError

from .. import state as states
from ..log import FLUSH_SECONDS, EpochLog
from ..observations.shared import MergedObservations
from ..search.coordinator import Coordinator
from ..search.tasks import Member, Rewards, Task
from .optimizing import Optimizing
from .results import Results, mean_of
from .testing import Tests

if TYPE_CHECKING:
    from ..strategies.base import Array, Strategy

__all__ = ["Experiment"]

Publish = Callable[[str, str, int, Any], int]  # experiment, run, version, parameters: returns the number of the weights
Cancel = Callable[[Member, Task], None]

_log = logging.getLogger("echo.es")
_MODES = ("epochs", "steady")
_HISTORY = 64  # epochs whose rewards a worker can be given that missed them
_SAVE_SECONDS = 30.0  # a server that goes on from its log repeats about so much optimising at most


class Experiment:
    """One search. `ESServer` makes one from its own arguments; give it several with `ESServer(experiments={name: Experiment(...)})`.

    Args:
        population: individuals in an epoch; None: those of the strategy.
        strategy: optimises at the server; None: the workers optimise.
        theta: the parameters that the strategy begins with, shape (dims,); None: zeros.
        seed: of the strategy's noise.
        mode: "epochs" has the strategy told whole epochs. "steady" has each reward told when it arrives, so nobody waits for the slowest worker;
            `population` rewards count as an epoch. Not every strategy can do that.
        observations: the shape of one observation; the server then merges what workers have seen (`SharedObservations`). None: it does not.
        log: the file of the epoch log. If it exists, the search goes on from there. None: nothing is logged.
        max_epochs: ends after so many; 0: never.
        max_slices: the largest number of slices in one task; 0: any.
        task_timeout: seconds after which a worker that has not finished its task is removed; None: never.
        straggle: how many times the median duration a task may take before an idle worker does the same; straggle_floor: at least so many seconds.
        grace: seconds for which a worker that is not connected keeps its task.

    Attributes:
        name: by which workers join; the server gives it.
        run: tells this search from others under the same name.
        weights: the number of the weights that have the newest parameters.
        results: what became of the epochs so far.

    Raises:
        ConfigError: the population is less than 1 or not that of the strategy, or the strategy cannot do this mode.
    """

    def __init__(
        self,
        population: int | None = None,
        *,
        strategy: Strategy | None = None,
        theta: ArrayLike | None = None,
        seed: int = 0,
        mode: str = "epochs",
        observations: tuple[int, ...] | None = None,
        log: str | os.PathLike[str] | None = None,
        max_epochs: int = 0,
        max_slices: int = 0,
        task_timeout: float | None = None,
        straggle: float = 3.0,
        straggle_floor: float = 1.0,
        grace: float = 5.0,
    ) -> None:
        if strategy is not None and population not in (None, strategy.population):
            raise ConfigError(f"population: {population} is not that of the strategy, {strategy.population}; leave it out")
        population = strategy.population if strategy is not None else population
        if population is None or population < 1:
            raise ConfigError(f"population: there must be at least one individual, not {population}")
        if mode not in _MODES:
            raise ConfigError(f"mode: there is no {mode!r}; choose 'epochs' or 'steady'")
        if mode == "steady" and strategy is None:
            raise ConfigError("mode: 'steady' needs a strategy, because workers that optimise need the rewards of a whole epoch")
        self.name, self.run, self.weights, self.results = "", secrets.token_hex(8), 0, Results()
        self.optimizing = None if strategy is None else Optimizing(strategy, theta, seed, steady=mode == "steady")
        self.observations = None if observations is None else MergedObservations(observations)
        self.coordinator = Coordinator(
            population,
            self,
            max_epochs=max_epochs,
            max_slices=max_slices,
            server_optimizes=strategy is not None,
            steady=mode == "steady",
            straggle=straggle,
            floor=straggle_floor,
            grace=grace,
            task_timeout=task_timeout,
            history=_HISTORY,
        )
        self._over = threading.Event()
        self._tests = Tests(self.coordinator, self._over)
        self._mode, self._log_path = mode, log
        self._log: EpochLog | None = None
        self._publish: Publish = lambda name, run, version, params: 0
        self._cancel: Cancel = lambda member, task: None
        self._failed: Exception | None = None
        self._saved = time.monotonic()

    # ---- for you to use ---------------------------------------------------------------------------------------------------

    @property
    def theta(self) -> Array:
        """The strategy's parameters, shape (dims,): the centre of its distribution. Raises ConfigError without a strategy."""
        if self.optimizing is None:
            raise ConfigError("theta: the workers optimise here, so only they know what their state means; see state()")
        return self.optimizing.theta

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the last epoch is over. False: it was not within `timeout` seconds. Raises what the strategy or the log raised."""
        over = self._over.wait(timeout)
        if self._failed is not None:
            raise self._failed
        return over

    def test(self, theta: Any = None, *, episodes: int = 10, timeout: float | None = None) -> Rewards:
        """Have the workers evaluate parameters without noise, before anything else, while the search goes on; see `ESServer.test`."""
        if self.optimizing is not None:
            tested = self.theta if theta is None else np.asarray(theta)
            if tested.shape != self.theta.shape:
                raise ValueError(f"theta: its shape must be {self.theta.shape}, not {tested.shape}")
            state: Any = states.pack(tested)
        else:
            state = self.coordinator.state if theta is None else states.pack(theta)
        return self._tests.run(state, episodes, timeout)

    def stats(self) -> dict[str, float | str]:
        """The figures of the coordinator, and of the results."""
        figures: dict[str, float | str] = {**self.coordinator.stats(), **self.results.figures()}
        if self.observations is not None:
            figures["observations_total"] = self.observations.count
        diverged = [member.name for member in self.coordinator.members() if member.diverged]
        return figures | ({"diverged_workers": ", ".join(sorted(diverged))} if diverged else {})

    def status(self) -> dict[str, Any]:
        """What happens now, as JSON has it: `echoctl es status` shows it."""
        results, tests = self.results, self.results.tests
        last = None if results.newest is None else {"epoch": results.newest[0], "mean": mean_of(results.newest[1])}
        return {
            "experiment": self.name,
            "strategy": None if self.optimizing is None else type(self.optimizing.strategy).__name__,
            "mode": self._mode,
            **self.coordinator.view().to_json(),
            "best_so_far": None if results.best is None else results.best._asdict(),
            "last_epoch": last,
            "last_test": None if not tests else {"epoch": tests[-1][0], "mean": mean_of(tests[-1][1])},
            "counts": dict(self.coordinator.counts),
            "log": None if self._log_path is None else str(self._log_path),
        }

    # ---- the server's side ------------------------------------------------------------------------------------------------

    def begin(self, name: str, publish: Publish, cancel: Cancel) -> None:
        """The server has a name, a way to publish parameters, and one to cancel tasks. With a log, go on from there; raises what `EpochLog` raises."""
        self.name, self._publish, self._cancel = name, publish, cancel
        if self._log_path is None:
            self._publish_params()
            return
        self._log = EpochLog(self._log_path, self._describe())
        self.run = self._log.run
        try:
            self._resume(self._log)
        except BaseException:
            self._log.close()
            raise

    def tick(self) -> None:
        """Look after slow and lost workers, and write what is to be logged. Call it every so often."""
        self.coordinator.tick()
        if self._log is not None:
            try:
                self._log.flush(FLUSH_SECONDS)
            except Exception as error:
                self._fail(error)

    def close(self) -> None:
        """End the search. The log can be used by another server then. Idempotent."""
        self.coordinator.stop()
        if self._log is not None:
            if self._failed is None:
                self._save(0.0)
            self._log.close()

    def _describe(self) -> dict[str, Any]:
        """All that must be the same when the search goes on."""
        described: dict[str, Any] = {"experiment": self.name, "population": self.coordinator.population, "mode": self._mode}
        if self.optimizing is not None:
            described |= self.optimizing.describe()
        again: dict[str, Any] = json.loads(json.dumps(described))
        return again

    def _resume(self, log: EpochLog) -> None:
        found, saved = log.found, log.saved_state()
        for epoch, rewards in found.epochs:
            self.results.complete(epoch, rewards)
        self.results.tests += found.tests
        if self.observations is not None and found.seen is not None:
            self.observations.restore(*found.seen)
        if self.optimizing is None:
            self._resume_state(log, saved)
            return
        self.optimizing.resume(saved, found)
        self._publish_params()  # before the coordinator goes on, for it may complete an epoch at once
        if self.coordinator.steady:
            individuals, rewards = found.steady()
            if len(rewards):
                self.results.told(individuals, rewards, self.coordinator.population)
            self.coordinator.resume_steady(individuals, self.optimizing.version)
        else:
            self.coordinator.resume(found.epochs[-_HISTORY:], self.optimizing.version, None, found.partial())

    def _resume_state(self, log: EpochLog, saved: tuple[int, int, bytes] | None) -> None:
        """Go on with the state that a worker shared last, if there is one."""
        epochs = log.found.epochs
        if saved is None and not epochs:
            return
        if saved is None or not 0 <= len(epochs) - saved[0] <= _HISTORY:
            has = "no state" if saved is None else f"the state of epoch {saved[0]}"
            raise CheckpointError(f"log: {log.path} has {len(epochs)} epochs, but beside it there is {has}; restore both from the same backup")
        version, _, state = saved
        self.coordinator.resume(epochs[-_HISTORY:], version, state, log.found.partial(), digest=states.digest(state))

    def _publish_params(self) -> None:
        if self.optimizing is not None:
            self.weights = self._publish(self.name, self.run, self.optimizing.version, self.optimizing.params())

    def _save(self, after: float) -> None:
        """Save what the strategy has learned, unless that was done less than `after` seconds ago."""
        if self._log is not None and self.optimizing is not None and time.monotonic() - self._saved >= after:
            version, told, state = self.optimizing.save()
            self._log.flush()  # the log never ends before the state
            self._log.state(version, state, told)
            self._saved = time.monotonic()

    def _fail(self, error: Exception) -> None:
        """The search cannot go on; `wait` raises the error."""
        if self._failed is None:
            self._failed = error
            _log.error("the search %r ends: %s", self.name, error)
        self.coordinator.stop()

    # ---- what the coordinator tells -----------------------------------------------------------------------------------------

    def evaluated(self, epoch: int, slices: tuple[slice, ...], rewards: Rewards) -> None:
        if self._failed is not None:
            return
        if self._log is not None:
            self._log.part(epoch, slices, rewards)
        if not self.coordinator.steady:
            return
        try:
            self._tell_each(epoch, slices, rewards)
        except Exception as error:
            self._fail(error)

    def _tell_each(self, epoch: int, slices: tuple[slice, ...], rewards: Rewards) -> None:
        assert self.optimizing is not None
        individuals = np.concatenate([np.arange(part.start, part.stop) for part in slices])
        self.results.told(individuals, rewards, self.coordinator.population)
        if not self.optimizing.tell_each(individuals.tolist(), rewards):
            return
        seen = None if self.observations is None else self.observations.freeze(self.optimizing.version)
        if self._log is not None:
            self._log.flush()
            if seen is not None:
                self._log.seen(self.optimizing.version, seen)
            self._save(_SAVE_SECONDS)
        self._publish_params()
        self.coordinator.told()

    def epoch_complete(self, epoch: int, rewards: Rewards) -> None:
        if self._failed is not None:
            return
        try:
            seen = None if self.observations is None else self.observations.freeze(epoch)
            if self._log is not None:
                self._log.epoch(epoch, rewards, seen)
            self.results.complete(epoch, rewards)
            if self.optimizing is None:
                return
            self.optimizing.tell(rewards)
            self._save(_SAVE_SECONDS)
            self._publish_params()
        except Exception as error:
            self._fail(error)
        else:
            self.coordinator.told()

    def state_shared(self, version: int, state: Any) -> None:
        if self._log is not None and self._failed is None:
            try:
                self._log.state(version, state)
            except Exception as error:
                self._fail(error)

    def tested(self, epoch: int, rewards: Rewards) -> None:
        self.results.tests.append((epoch, rewards))
        try:
            if self._log is not None:
                self._log.test(epoch, rewards)
        except Exception as error:
            self._fail(error)
        self._tests.done(rewards)

    def cancelled(self, member: Member, task: Task) -> None:
        self._cancel(member, task)

    def over(self) -> None:
        self._over.set()

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
from ..arguments import number, path_of, seed_of, shape_of, whole
from ..log import FLUSH_SECONDS, EpochLog
from ..observations.shared import MergedObservations
from ..search.coordinator import Coordinator
from ..search.tasks import Member, Rewards, Task
from ..strategies.base import Strategy
from .optimizing import Optimizing
from .parameters import Parameters
from .results import Results, mean_of
from .testing import Tests

if TYPE_CHECKING:
    from ..strategies.base import Array

__all__ = ["Experiment"]

Publish = Callable[[str, str, int, Any], int]  # experiment, run, version, parameters: returns the number of the weights
Cancel = Callable[[Member, Task], None]

_log = logging.getLogger("echo.es")
_MODES = ("epochs", "steady")
_HISTORY = 64  # epochs whose rewards a worker can be given that missed them
_SAVE_SECONDS = 30.0  # a server that goes on from its log repeats about so much optimising at most


class Experiment:
    """One search. `ESServer(Experiment(...))` runs one, and `ESServer({name: Experiment(...)})` several.

    Args:
        population: how many individuals an epoch has. None takes the population of the strategy.
        strategy: the strategy by which the server optimises. None means that the workers optimise.
        theta: the parameters that the strategy begins with, shape (dims,). None means zeros.
        seed: the seed of the strategy's noise.
        mode: with "epochs", the strategy gets the rewards of a whole epoch at once. With "steady", it gets each reward when it arrives, so that no worker
            waits for the slowest one, and `population` rewards count as an epoch. Not every strategy can do that.
        observations: the shape of one observation. The server then merges the statistics of the workers (`SharedObservations`). None means that it merges none.
        log: the file of the epoch log. If it exists, the search goes on from there. None means that no log is written.
        max_epochs: the search stops after this many epochs. 0 means that there is no limit.
        max_slices: the largest number of slices in one task. 0 means that there is no limit.
        task_timeout: seconds after which a worker that has not finished its task is removed. None means that there is no limit.
        straggle: a task that takes longer than this many times the median duration is also given to an idle worker.
        straggle_floor: the fewest seconds that pass before a task is given to a second worker.
        grace: for how many seconds a worker that has lost its connection keeps its task.

    Attributes:
        name: the name by which workers join. The server sets it.
        run: an id that distinguishes this search from others of the same name.
        parameters: the newest parameters, as workers get them. It is None before they are published, and always without a strategy.
        results: the rewards of the epochs so far.

    Raises:
        ConfigError: an argument is invalid, the population differs from that of the strategy, or the strategy does not support this mode.
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
        if not (strategy is None or isinstance(strategy, Strategy)):
            raise ConfigError(f"strategy must be a strategy, such as SepCMAES(dims=8, population=16), not {strategy!r:.80}")
        if strategy is not None and population not in (None, strategy.population):
            raise ConfigError(f"population: {population} is not that of the strategy, {strategy.population}; leave it out")
        population = strategy.population if strategy is not None else whole("population", population, 1)
        max_epochs, max_slices, seed = whole("max_epochs", max_epochs, 0), whole("max_slices", max_slices, 0), seed_of(seed)
        straggle, straggle_floor = number("straggle", straggle, least=0, finite=False), number("straggle_floor", straggle_floor, least=0, finite=False)
        grace = number("grace", grace, least=0, finite=False)
        if task_timeout is not None:
            task_timeout = number("task_timeout", task_timeout, above=0, finite=False)
        if mode not in _MODES:
            raise ConfigError(f"mode: there is no {mode!r}; choose 'epochs' or 'steady'")
        if mode == "steady" and strategy is None:
            raise ConfigError("mode: 'steady' needs a strategy, because workers that optimise need the rewards of a whole epoch")
        self.name, self.run, self.results = "", secrets.token_hex(8), Results()
        self.parameters: Parameters | None = None
        self.optimizing = None if strategy is None else Optimizing(strategy, theta, seed, steady=mode == "steady")
        self.observations = None if observations is None else MergedObservations(shape_of("observations", observations))
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
        self._mode = mode
        self._log_path = None if log is None else path_of("log", log)
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
        """Wait until the last epoch is over. Returns False if that takes longer than `timeout` seconds. Raises what the strategy or the log raised."""
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
        """Look after slow and lost workers, and write what is to be logged. Call it several times a second."""
        self.coordinator.tick()
        if self._log is not None:
            try:
                self._log.flush(FLUSH_SECONDS)
            except Exception as error:
                self._fail(error)

    @property
    def finished(self) -> bool:
        """Whether the last epoch is over. It is False for a search that `close`, or an error, has ended before."""
        return self._failed is None and self.coordinator.finished

    def close(self) -> None:
        """End the search. The log can be used by another server then. Idempotent."""
        self.coordinator.stop()
        if self._log is not None:
            try:
                if self._failed is None:
                    self._save(0.0)
            finally:
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
            version, params = self.optimizing.version, self.optimizing.params()
            number = self._publish(self.name, self.run, version, params)
            self.parameters = Parameters.of(params, version, number)  # as a whole, because other threads answer workers meanwhile

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

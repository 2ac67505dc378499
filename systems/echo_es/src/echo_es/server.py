"""The server of a search: a coordinator whose workers come over Echo's transports, or are clients of Evochi.

Without a strategy the workers optimise: each computes the same next state, and one of them shares it. With a strategy this server optimises: it
publishes the parameters from which a worker draws its candidates, and only rewards travel up (`run_worker`).
"""

from __future__ import annotations

import inspect
import os
import re
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from echo_core import ConfigError, EchoError, Server
from echo_core.base.address import Address

from . import state as states
from .evochi.skippable import ours
from .experiments.experiment import Experiment
from .experiments.published import Published
from .experiments.results import Best
from .operations import Operations
from .search.coordinator import Coordinator
from .search.tasks import Rewards

if TYPE_CHECKING:
    from .evochi.front import EvochiFront
    from .evochi.options import FrontOptions
    from .strategies.base import Array, Strategy

__all__ = ["DEFAULT", "EXAMPLE", "ESServer"]

EXAMPLE = {"es": np.zeros(1, np.float32)}  # nobody sends samples, but every connection has a layout of them
DEFAULT = "default"  # the name of a server's only experiment
_TICK = 0.25  # seconds between two looks at who is connected and who is slow


class ESServer:
    """Gives the individuals of each epoch to the workers that are there. With a `strategy` it optimises as well; otherwise its workers do.

    A server has one experiment, named "default", which is made from its arguments; or several with `experiments`. `server["name"]` is an `Experiment`.
    The properties `theta`, `best` and so on are those of the only experiment.

    Args:
        population: individuals in an epoch; None: those of the strategy.
        transport: how workers reach this server, as for `echo_core.Server`.
        strategy: optimises here; its population is that of an epoch. None: the workers optimise.
        theta: the parameters that the strategy begins with, shape (dims,); None: zeros.
        seed: of the strategy's noise.
        mode: "epochs" has the strategy told whole epochs; "steady" has each reward told when it arrives, if the strategy can.
        observations: the shape of one observation, if workers send statistics of what they have seen (`SharedObservations`).
        log: the file of the epoch log. A server that was killed goes on from there, with the same rewards and the same parameters, bit for bit.
        experiments: several searches by name, instead of every argument here except `transport` and `options`. Names consist of small letters, digits and "_".
        evochi: where clients of Evochi connect, as "host:port" or as options. They optimise themselves, so it excludes `strategy`; and their states
            are pickled, so workers at `transport` cannot join the same search.
        max_epochs: ends after so many; 0: never.
        task_timeout: seconds after which a worker that has not finished its task is removed; None: never.
        straggle: how many times the median duration a task may take before an idle worker does the same; straggle_floor: at least so many seconds.
        grace: seconds for which a worker that is not connected keeps its task.
        max_slices: the largest number of slices in one task; 0: any.
        options: of `echo_core.Server`, such as `token`.

    Raises:
        ConfigError: the arguments exclude each other, the population is less than 1, the strategy cannot do this mode, or the log belongs to another
            search or another server. CheckpointError: the log is damaged. SecurityError: `evochi` is reachable from other machines without protection.
            What `echo_core.Server` raises.
    """

    def __init__(
        self,
        population: int | None = None,
        transport: Any = None,
        *,
        strategy: Strategy | None = None,
        theta: ArrayLike | None = None,
        seed: int = 0,
        mode: str = "epochs",
        observations: tuple[int, ...] | None = None,
        log: str | os.PathLike[str] | None = None,
        experiments: Mapping[str, Experiment] | None = None,
        evochi: str | FrontOptions | None = None,
        max_epochs: int = 0,
        max_slices: int = 0,
        task_timeout: float | None = None,
        straggle: float = 3.0,
        straggle_floor: float = 1.0,
        grace: float = 5.0,
        **options: Any,
    ) -> None:
        if evochi is not None and transport is not None:
            raise ConfigError("evochi: its clients pickle their states, so workers at `transport` cannot join the same search; give one of the two")
        search: dict[str, Any] = {
            "population": population,
            "strategy": strategy,
            "theta": theta,
            "seed": seed,
            "mode": mode,
            "observations": observations,
            "log": log,
            "max_epochs": max_epochs,
            "max_slices": max_slices,
            "task_timeout": task_timeout,
            "straggle": straggle,
            "straggle_floor": straggle_floor,
            "grace": grace,
        }
        if experiments is None:
            experiments = {DEFAULT: Experiment(**search)}
        else:
            _check_alone(experiments, {**search, "evochi": evochi})
        _check_names(experiments)
        self.experiments = dict(experiments)
        self._closed = threading.Event()
        self._front = None if evochi is None else _front(self.coordinator, evochi)
        self._server = Server(EXAMPLE, batch_size=1, transport=transport, **options)
        self._operations = Operations(self.experiments, self._server)
        published = Published(self._server)
        begun: list[Experiment] = []
        try:
            for name, experiment in self.experiments.items():
                begun.append(experiment)
                experiment.begin(name, published.publish, self._operations.cancel)
                self._server.add_stats("es" if len(self.experiments) == 1 else f"es_{name}", experiment.stats)
        except BaseException:
            for experiment in begun:
                experiment.close()
            self._server.close()
            raise
        self._ticking = threading.Thread(target=self._tick, name="echo-es", daemon=True)

    def start(self) -> ESServer:
        """Let workers come."""
        self._server.start()
        if self._front is not None:
            self._front.start()
        self._ticking.start()
        return self

    def close(self, timeout: float = 1.0) -> None:
        """End the searches and disconnect the workers. A log can be used by another server then. Idempotent.

        Evaluations are cancelled, and each worker is told that it is over when it asks for a task. One that has not asked within `timeout` seconds
        only loses its connection, and tries for a while to find a server that goes on.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        if self._ticking.ident is not None:
            self._ticking.join()
        for experiment in self.experiments.values():
            experiment.close()
        ends = time.monotonic() + timeout
        while self._operations.working(self._connected()) and time.monotonic() < ends:
            time.sleep(0.005)
        if self._front is not None:
            self._front.close()
        self._server.close()

    def __enter__(self) -> ESServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Experiment:
        if name not in self.experiments:
            raise KeyError(f"there is no experiment {name!r}; this server has {', '.join(self.experiments)}")
        return self.experiments[name]

    # ---- where it is --------------------------------------------------------------------------------------------------------

    @property
    def address(self) -> Address:
        """Where workers connect."""
        return self._server.address

    @property
    def server(self) -> Server:
        """Echo's server behind this one, for `echo_core.server.statistics.prometheus.Exporter` and operations of your own."""
        return self._server

    @property
    def evochi_port(self) -> int:
        """Where clients of Evochi connect. Raises ConfigError if the server has no `evochi=`."""
        if self._front is None:
            raise ConfigError('this server has no front for Evochi\'s clients; create it with evochi="127.0.0.1:0"')
        return self._front.port

    # ---- the only experiment ------------------------------------------------------------------------------------------------

    @property
    def coordinator(self) -> Coordinator:
        """Gives the tasks."""
        return self._only.coordinator

    @property
    def theta(self) -> Array:
        """The strategy's parameters, shape (dims,): the centre of its distribution. Raises ConfigError without a strategy."""
        return self._only.theta

    @property
    def best(self) -> Best | None:
        """The highest reward so far, its epoch and its individual; None before the first."""
        return self._only.results.best

    @property
    def rewards(self) -> tuple[int, Rewards] | None:
        """The newest complete epoch and its rewards, float64 of shape (population,); None before the first."""
        return self._only.results.newest

    @property
    def tests(self) -> list[tuple[int, Rewards]]:
        """The epoch and the rewards of each test so far."""
        return list(self._only.results.tests)

    def state(self, state_type: type | None = None) -> Any:
        """The newest state that a worker has shared, rebuilt as in `Worker`; None if no worker has shared one.

        Raises EchoError if a client of Evochi has pickled it.
        """
        shared = self.coordinator.state
        if shared is None:
            return None
        if self._front is not None and (shared := ours(shared)) is None:
            raise EchoError("the state was pickled by a client of Evochi, and a server never opens such a state; read it in a worker")
        return states.unpack(shared, state_type)

    def test(self, theta: Any = None, *, episodes: int = 10, timeout: float | None = None) -> Rewards:
        """Have the workers evaluate parameters without noise, before anything else. The search goes on meanwhile.

        Args:
            theta: the parameters, shape (dims,); None: the present ones. If the workers optimise, it is a state, and they need the method `test`.
            episodes: how often; different workers may do them.
            timeout: seconds; None waits for as long as it takes.

        Returns:
            The rewards, float64 of shape (episodes,).

        Raises:
            EchoTimeoutError: there were no workers to do it in time. RefusedError, an EchoError: there is nothing to test yet, or the search is over.
            ValueError: theta does not fit.
        """
        return self._only.test(theta, episodes=episodes, timeout=timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the last epoch of every experiment is over. False: it was not within `timeout` seconds.

        Raises what the strategy raised, or what happened when the log was written.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        over = [one.wait(None if ends is None else max(0.0, ends - time.monotonic())) for one in self.experiments.values()]
        return all(over)

    def stats(self) -> dict[str, float | int | str]:
        """The figures of `echo_core.Server`, and those of the search as `es/...`; of several experiments, as `es_<name>/...`."""
        return self._server.stats()

    def status(self) -> dict[str, dict[str, Any]]:
        """What happens now in each experiment, by name: the tasks of its workers and their ages, slow workers, best and mean reward."""
        return {name: experiment.status() for name, experiment in self.experiments.items()}

    @property
    def _only(self) -> Experiment:
        if len(self.experiments) > 1:
            raise ConfigError(f"this server has several experiments ({', '.join(self.experiments)}); choose one: server[{next(iter(self.experiments))!r}]")
        (experiment,) = self.experiments.values()
        return experiment

    def _connected(self) -> set[str]:
        """The ids of all clients that are connected."""
        return {peer.id for peer in self._server.peers()}

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            self._operations.look(self._connected())
            for experiment in self.experiments.values():
                experiment.tick()


def _check_alone(experiments: Mapping[str, Experiment], others: Mapping[str, Any]) -> None:
    """Raise ConfigError if an argument of a single search was given beside `experiments`, which would have no effect."""
    if not experiments:
        raise ConfigError("experiments: there must be at least one")
    defaults = {name: parameter.default for name, parameter in inspect.signature(ESServer).parameters.items()}
    given = [name for name, value in others.items() if np.ndim(value) or value != defaults[name]]
    if given:
        raise ConfigError(f"{', '.join(given)}: each Experiment has its own, and evochi= needs a server of one search; leave it out beside experiments=")


def _check_names(experiments: Mapping[str, Experiment]) -> None:
    for name, experiment in experiments.items():
        if not re.fullmatch("[a-z][a-z0-9_]*", name):
            raise ConfigError(f"experiments: {name!r} is no name; use small letters, digits and '_', and begin with a letter")
        if experiment.name:
            raise ConfigError(f"experiments: {name!r} belongs to a server already; make a new Experiment")
    if len({id(experiment) for experiment in experiments.values()}) < len(experiments):
        raise ConfigError("experiments: each name needs an Experiment of its own")


def _front(coordinator: Coordinator, evochi: str | FrontOptions) -> EvochiFront:
    from .evochi.needed import require

    require()
    from .evochi.front import EvochiFront
    from .evochi.options import FrontOptions

    return EvochiFront(coordinator, FrontOptions.given(evochi))

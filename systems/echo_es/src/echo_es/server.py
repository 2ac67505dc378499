"""The server of a search: a coordinator whose workers come over Echo's transports, or are clients of Evochi.

Without a strategy the workers optimise: each computes the same next state, and one of them shares it. With a strategy this server optimises: it
publishes the parameters from which a worker draws its candidates, and only rewards travel up (`run_worker`).
"""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

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
    from .strategies.base import Array

__all__ = ["DEFAULT", "EXAMPLE", "ESServer"]

EXAMPLE = ()  # a client sends no samples
DEFAULT = "default"  # the name of a server's only experiment
_OF_EXPERIMENT = inspect.signature(Experiment).parameters.keys()
_TICK = 0.25  # seconds between two looks at who is connected and who is slow


class ESServer:
    """Gives the individuals of each epoch to the workers that are there. With a `strategy` it optimises as well; otherwise its workers do.

    A server has one experiment, named "default", or several. `server["name"]` is an `Experiment`. The properties `theta`, `best` and so on are those of the
    only experiment.

    Args:
        experiment: the search; or several by name, and names consist of small letters, digits and "_". A number is a population: `ESServer(10, max_epochs=3)`
            is `ESServer(Experiment(10, max_epochs=3))`.
        transport: the address or the transport by which workers reach this server, as for `echo_core.Server`.
        evochi: where clients of Evochi connect, as "host:port" or as options. They optimise themselves, so it excludes a strategy; their states are pickled,
            so workers at `transport` cannot join the same search; and they cannot name an experiment, so there must be only one.
        options: of the only `Experiment`, if none is given, such as `strategy` and `max_epochs`; and of `echo_core.Server`, such as `token`.

    Raises:
        ConfigError: the arguments exclude each other, what `Experiment` refuses, or the log belongs to another search or another server.
            CheckpointError: the log is damaged. SecurityError: `evochi` is reachable from other machines without protection.
            What `echo_core.Server` raises.
    """

    def __init__(
        self,
        experiment: Experiment | Mapping[str, Experiment] | int | None = None,
        transport: Any = None,
        *,
        evochi: str | FrontOptions | None = None,
        **options: Any,
    ) -> None:
        if evochi is not None and transport is not None:
            raise ConfigError("evochi: its clients pickle their states, so workers at `transport` cannot join the same search; give one of the two")
        self.experiments = _experiments(experiment, {name: options.pop(name) for name in _OF_EXPERIMENT & options.keys()})
        if evochi is not None and len(self.experiments) > 1:
            raise ConfigError("evochi: its clients cannot name an experiment, so such a server has only one")
        self._closed = threading.Event()
        self._front = None if evochi is None else _front(self.coordinator, evochi)
        self._server = Server(transport=transport, **options)
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
        """Accept workers from now on."""
        self._server.start()
        if self._front is not None:
            self._front.start()
        self._ticking.start()
        return self

    def close(self, timeout: float = 1.0, *, restarting: bool = False) -> None:
        """End the searches and disconnect the workers, which ends the job. A log can be used by another server then. Idempotent.

        Evaluations are cancelled, and each worker is told that it is over when it asks for a task. One that has not asked within `timeout` seconds
        is told by the end of its connection: see `echo_core.JobEnded`. `with ESServer(...)` ends the job in the same way if its block ends without
        an error, by KeyboardInterrupt, or by SystemExit without an error code. After any other exception it closes with `restarting=True`.

        Args:
            timeout: the most seconds for which it waits until the workers have asked. It has no meaning if `restarting` has an effect.
            restarting: the searches go on with another server at this address, usually from their logs. Workers are not told that it is over: they
                try to connect again for their `reconnect` seconds. It has no effect if all searches have finished their last epoch.

        Raises:
            What a log that cannot be written raises, or a transport that cannot be closed. Everything else is closed anyway.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        if self._ticking.ident is not None:
            self._ticking.join()
        if restarting and not all(experiment.finished for experiment in self.experiments.values()):
            try:
                self._disconnect(restarting=True)  # first, because a search that ends tells every worker that asks that it is over
            finally:
                self._end_searches()
            return
        try:
            self._end_searches()
            ends = time.monotonic() + timeout
            while self._operations.working(self._connected()) and time.monotonic() < ends:
                time.sleep(0.005)
        finally:
            self._disconnect(restarting=False)

    def _end_searches(self) -> None:
        with ExitStack() as closing:  # it closes all of them, whatever one raises
            for experiment in self.experiments.values():
                closing.callback(experiment.close)

    def _disconnect(self, *, restarting: bool) -> None:
        try:
            if self._front is not None:
                self._front.close(restarting=restarting)
        finally:
            self._server.close(restarting=restarting)

    def __enter__(self) -> ESServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        ended_well = error is None or isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and error.code in (None, 0))
        self.close(restarting=not ended_well)  # the rule of echo_core.Server

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
        """The highest reward so far, its epoch and its individual. It is None before the first epoch is complete."""
        return self._only.results.best

    @property
    def rewards(self) -> tuple[int, Rewards] | None:
        """The newest complete epoch and its rewards, float64 of shape (population,). It is None before the first epoch is complete."""
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
            theta: the parameters, shape (dims,). None takes the present parameters. If the workers optimise, `theta` is a state, and they need the
                method `on_test`.
            episodes: how many evaluations to make. Different workers may make them.
            timeout: seconds; None means that there is no limit.

        Returns:
            The rewards, float64 of shape (episodes,).

        Raises:
            EchoTimeoutError: workers did not finish the test in time. RefusedError, an EchoError: there is nothing to test yet, or the search is over.
            ValueError: theta does not fit.
        """
        return self._only.test(theta, episodes=episodes, timeout=timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the last epoch of every experiment is over. Returns False if that takes longer than `timeout` seconds.

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


def _experiments(given: Experiment | Mapping[str, Experiment] | int | None, arguments: dict[str, Any]) -> dict[str, Experiment]:
    """The experiments of a server by name. `arguments`: those of `Experiment` that the server was given."""
    if isinstance(given, Experiment | Mapping):
        if arguments:
            raise ConfigError(f"{', '.join(sorted(arguments))}: each Experiment has its own; give it to Experiment(...) instead of ESServer")
        experiments = {DEFAULT: given} if isinstance(given, Experiment) else dict(given)
    else:
        experiments = {DEFAULT: Experiment(**({"population": given} if given is not None else {}) | arguments)}
    _check_names(experiments)
    return experiments


def _check_names(experiments: Mapping[str, Experiment]) -> None:
    if not experiments:
        raise ConfigError("experiment: there must be at least one")
    for name, experiment in experiments.items():
        if not re.fullmatch("[a-z][a-z0-9_]*", name):
            raise ConfigError(f"experiment: {name!r} is no name; use small letters, digits and '_', and begin with a letter")
        if experiment.name:
            raise ConfigError(f"experiment: {name!r} belongs to a server already; make a new Experiment")
    if len({id(experiment) for experiment in experiments.values()}) < len(experiments):
        raise ConfigError("experiment: each name needs an Experiment of its own")


def _front(coordinator: Coordinator, evochi: str | FrontOptions) -> EvochiFront:
    from .evochi.needed import require

    require()
    from .evochi.front import EvochiFront
    from .evochi.options import FrontOptions

    return EvochiFront(coordinator, FrontOptions.given(evochi))

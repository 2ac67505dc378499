"""The learner's side of the job: this is how a program uses Echo.

    with Server(...) as server:
        server.publish(policy)
        while True:
            batch, info = server.sample()
            learn(batch)
            server.publish(policy)

All other code here starts, watches and ends the job.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from echo_core import EchoError, EchoTimeoutError, Server
from echo_core.plugins.discovery import transport_class

from .algorithm import Learner, Settings
from .figures import exported
from .fleet import Fleet, FleetError
from .monitor import Monitor
from .network import ActorCritic
from .options import Options
from .rollout import ACTIONS, OBSERVATIONS, example
from .view import View, open_view

_DEFAULTS = {
    "server": {
        "batch_size": 64,
        # One buffer is filled while the learner learns from the other. Further buffers would only make the
        # experience older.
        "num_buffers": 2,
        "transport": "tcp://127.0.0.1:0",
        "sampler": "fifo",
    }
}
_FAREWELL = 0.5  # seconds for closing; samples that arrive in them are not learned from
_REFRESH = 0.25  # seconds between two updates of the view


@dataclass(frozen=True)
class Outcome:
    """How a job ended. ``reached`` is the second at which the target was first passed."""

    exit_code: int
    reached: float | None
    mean_return: float
    episodes: int
    samples: int
    monitor: Monitor | None = None


def run(options: Options, view: Callable[[Options, str], View] = open_view) -> Outcome:
    """Run the whole job: server, workers, learning, view, plot, summary.

    ``view`` makes the view from the options and the server's address.

    It does not raise for errors of its environment; the exit code says how the job ended, see `options`.
    """
    monitor: Monitor | None = None
    trouble = ""
    interrupted = False
    try:
        with open_server(options) as server:
            monitor = Monitor(options, server.spec.sample_bytes)
            with (
                exported(server, options.metrics_port),
                view(options, str(server.address)) as shown,
                Fleet(str(server.address), options) as fleet,
                monitor.remarks(),
            ):
                try:
                    _learn(server, fleet, monitor, shown, options)
                except KeyboardInterrupt:
                    # A flag is set instead of raising, because the code that follows must run completely.
                    interrupted = True
                try:
                    monitor.finish()
                    shown.draw(monitor.observe(server, fleet), monitor, last=True)
                finally:
                    server.close(timeout=_FAREWELL)  # ends the job, so workers end; the fleet waits for them
    except KeyboardInterrupt:
        interrupted = True
    except (EchoError, FleetError, ImportError, OSError) as error:
        trouble = f"{type(error).__name__}: {error}"
    if monitor is None:
        print(f"cartpole: {trouble or 'interrupted'}", file=sys.stderr)
        return Outcome(130 if interrupted else 2, None, 0.0, 0, 0)
    return _conclude(options, monitor, interrupted, trouble)


def open_server(options: Options) -> Server:
    """The server: our defaults < the file < the environment < the command line."""
    sources: list[Any] = [_DEFAULTS]
    if options.config is not None:
        sources.append(options.config)
    chosen: dict[str, Any] = {}
    if options.transport is not None:
        chosen["transport"] = options.transport if "://" in options.transport else _anywhere(options.transport)
    if options.sampler is not None:
        chosen["sampler"] = {"type": options.sampler}
    if options.batch is not None:
        chosen["batch_size"] = options.batch
    return Server.from_config(sources, example(options.steps), **chosen)


def _anywhere(name: str) -> dict[str, Any]:
    """The transport of this name. If it has ports, it takes any free one, so that several demos can run on a machine."""
    options = {field.name for field in fields(transport_class(name).Options)}
    return {"type": name} | ({"port": 0} if "port" in options else {})


def _learn(server: Server, fleet: Fleet, monitor: Monitor, view: View, options: Options) -> None:
    network = ActorCritic(OBSERVATIONS, ACTIONS, seed=options.seed)
    learner = Learner(network, Settings(), seed=options.seed)
    # Workers only act, so only the policy is sent; the value network stays in the learner.
    version = server.publish({"actor": network.actor}).version
    look_at = 0.0
    while True:
        now = time.monotonic()
        if now >= look_at:
            look_at = now + _REFRESH
            for event in fleet.check():
                monitor.happened(event)
            view.draw(monitor.observe(server, fleet), monitor)
            if monitor.elapsed >= options.seconds:
                return
            if options.target > 0 and monitor.held >= options.hold > 0:
                return
        if options.target > 0 and options.hold <= 0 and monitor.reached_at is not None:
            return
        began = time.perf_counter()
        try:
            sample = server.sample(timeout=_REFRESH)
        except EchoTimeoutError:
            sample = None  # no worker sends, so check the workers
        waited = time.perf_counter() - began
        if sample is None:
            monitor.idle(waited)
            continue
        monitor.learned(sample.batch, version, waited)
        learner.learn(sample.batch)
        del sample  # gives the buffer back to the workers
        version = server.publish({"actor": network.actor}).version


def _conclude(options: Options, monitor: Monitor, interrupted: bool, trouble: str) -> Outcome:
    first = monitor.first_reached
    seconds = monitor.elapsed
    if trouble:
        print(f"cartpole: {trouble}", file=sys.stderr)
    print(_summary(options, monitor, interrupted, seconds))
    if options.plot is not None and monitor.batches:
        try:
            from .plot import save

            save(monitor, options)
            print(f"plot: {os.path.relpath(options.plot)}")
        except ImportError:
            print("cannot plot: matplotlib is missing; run: pip install matplotlib")
        except (OSError, KeyboardInterrupt) as error:
            print(f"cannot plot: {error or 'interrupted'}")
    if trouble:
        code = 2
    elif interrupted:
        code = 130
    else:
        code = 0 if first is not None or options.target <= 0 else 1
    return Outcome(code, first, monitor.mean_return, monitor.episodes, monitor.samples, monitor)


def _summary(options: Options, monitor: Monitor, interrupted: bool, seconds: float) -> str:
    end = "interrupted" if interrupted else "ended"
    if monitor.first_reached is not None:
        verdict = f"passed {options.target:g} after {monitor.first_reached:.1f} s"
    elif options.target > 0:
        verdict = f"did not pass {options.target:g}"
    else:
        verdict = "no target"
    megabytes = monitor.samples * monitor.sample_bytes / 1e6
    lag = monitor.lag_total / max(1, monitor.batches)
    return (
        f"{end} after {seconds:.1f} s: {verdict}\n"
        f"mean return {monitor.mean_return:.1f} over the last {len(monitor.last)} "
        f"of {monitor.episodes:,} episodes\n"
        f"up: {monitor.samples:,} rollouts of {options.steps} steps, {megabytes:.1f} MB, "
        f"in {monitor.batches:,} batches\n"
        f"down: {monitor.version:,} policy versions; policy lag {lag:.1f} of them"
    )

"""`echoctl es serve`: runs a server until its searches are over."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import click
import numpy as np

from echo_core import ConfigError
from echo_core.base.writing import write_whole
from echoctl.prometheus import Exporter

from ..experiments.experiment import Experiment
from ..server import ESServer
from ..strategies.base import Strategy, build
from .shared import json_option, named, print_json, show

__all__ = ["serve"]

_LOOK = 0.25  # seconds between two looks whether the search is over


@click.command(name="serve", short_help="run the server of a search")
@click.argument("search", required=False)
@click.option("--transport", default="tcp://127.0.0.1:0", show_default=True, help="Where workers connect.")
@click.option("--evochi", metavar="HOST:PORT", help="Where clients of Evochi connect, instead of --transport.")
@click.option("--population", type=click.IntRange(1), help="How many individuals an epoch has. This option is required with --strategy.")
@click.option("--strategy", "name", help="The strategy: OpenAIES, PGPE, SepCMAES or CMAES. Without this option the workers optimise.")
@click.option("--dims", type=click.IntRange(1), help="How many parameters the strategy has.")
@click.option("--set", "options", multiple=True, metavar="NAME=VALUE", help="An option of the strategy, such as --set sigma=0.1.")
@click.option(
    "--theta", type=click.Path(exists=True, path_type=Path), help="A .npy file with the parameters to begin with. Without this option they are zeros."
)
@click.option("--seed", type=int, default=0, show_default=True, help="The seed of the strategy's noise.")
@click.option(
    "--mode",
    type=click.Choice(["epochs", "steady"]),
    default="epochs",
    show_default=True,
    help="With steady, the strategy gets each reward when it arrives, not whole epochs.",
)
@click.option("--max-epochs", type=click.IntRange(0), default=0, show_default=True, help="Stop after this many epochs. 0 means that there is no limit.")
@click.option("--log", type=click.Path(path_type=Path), help="The file of the epoch log. If it exists, the search goes on from there.")
@click.option("--result", type=click.Path(path_type=Path), help="Write the parameters to this .npy file at the end.")
@click.option("--address-file", type=click.Path(path_type=Path), help="Write the address to this file once workers can connect.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics at http://127.0.0.1:PORT/metrics. 0 takes any free port.")
@json_option
def serve(search: str | None, transport: str, evochi: str | None, population: int | None, name: str | None, dims: int | None,
          options: tuple[str, ...], theta: Path | None, seed: int, mode: str, max_epochs: int, log: Path | None, result: Path | None,
          address_file: Path | None, metrics_port: int | None, as_json: bool) -> int:  # fmt: skip
    """Run a server until its searches are over, or until SIGTERM or Ctrl-C.

    Ctrl-C ends the job, so the workers end. After SIGTERM they try to connect again, because the server may be started again.

    SEARCH is package.module:function, which returns an Experiment, or a dict of them by name. Without it the options describe the search.

    \b
    Examples: echoctl es serve --strategy SepCMAES --dims 8 --population 16 --max-epochs 100 --log search.log
              echoctl es serve my_search:experiments --transport tcp://0.0.0.0:5555
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if search is not None:
        if name is not None or population is not None or log is not None or evochi is not None:
            raise ConfigError("SEARCH describes everything; leave out --strategy, --population, --log and --evochi")
        server = ESServer(_experiments(search), transport)
    else:
        strategy = _strategy(name, dims, population, options)
        start = None if theta is None else np.load(theta, allow_pickle=False)
        experiment = Experiment(
            None if strategy is not None else population, strategy=strategy, theta=start, seed=seed, mode=mode, max_epochs=max_epochs, log=log
        )
        server = ESServer(experiment, None if evochi is not None else transport, evochi=evochi)
    if result is not None and (len(server.experiments) > 1 or server[next(iter(server.experiments))].optimizing is None):
        server.close()
        raise ConfigError("--result: only a server with one experiment that has a strategy knows its parameters; leave it out")
    over = threading.Event()
    interrupted = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted |= number == signal.SIGINT
        over.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    with ExitStack() as ending:
        for number, handler in before.items():
            ending.callback(signal.signal, number, handler)
        if address_file is not None:
            ending.callback(address_file.unlink, missing_ok=True)
        ending.callback(lambda: server.close(restarting=not interrupted))
        server.start()
        address = str(server.address) if evochi is None else f"port {server.evochi_port} (clients of Evochi)"
        metrics: str | None = None
        if metrics_port is not None:
            exporter = Exporter(server.server, port=metrics_port)
            ending.callback(exporter.close)
            metrics = exporter.url
        if as_json:
            print_json({"address": address, "experiments": list(server.experiments), "metrics": metrics})
        else:
            click.echo(f"address: {address}" + (f"\nmetrics: {metrics}" if metrics is not None else ""))
        if address_file is not None:
            write_whole(address_file, f"{address}\n".encode())
        if log is not None and server.wait(0):
            click.echo(f"the search of {log} is over already; a larger --max-epochs goes on, and another --log begins a new one", err=True)
        while not over.is_set() and not server.wait(_LOOK):
            pass
        _report(server, as_json)
        if result is not None:
            np.save(result, server.theta)
    return 0


def _experiments(source: str) -> Experiment | Mapping[str, Experiment]:
    made = named(source)
    found: Experiment | Mapping[str, Experiment] = made() if callable(made) else made
    if not isinstance(found, Experiment) and not (isinstance(found, Mapping) and all(isinstance(one, Experiment) for one in found.values())):
        raise ConfigError(f"{source}: it must return an Experiment, or a dict of them by name, not {type(found).__name__}")
    return found


def _strategy(name: str | None, dims: int | None, population: int | None, options: tuple[str, ...]) -> Strategy | None:
    if name is None:
        if dims is not None or options:
            raise ConfigError("--dims and --set belong to a strategy; give --strategy")
        return None
    if dims is None or population is None:
        raise ConfigError("--strategy needs --dims and --population")
    given: dict[str, Any] = {}
    for item in options:
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--set {item}: give NAME=VALUE, such as sigma=0.1")
        try:
            given[key] = json.loads(value)
        except json.JSONDecodeError:
            given[key] = value
    return build({"strategy": name, "dims": dims, "population": population, **given})


def _report(server: ESServer, as_json: bool) -> None:
    """Say how far the searches have come."""
    for name, status in server.status().items():
        best, last = status["best_so_far"], status["last_epoch"]
        if as_json:
            print_json({"experiment": name, "last_epoch": last, "best_so_far": best, "counts": status["counts"]})
        else:
            epochs = 0 if last is None else last["epoch"]
            click.echo(f"{name}: {epochs} epochs, best reward {show(best and best['reward'])}, mean of the last epoch {show(last and last['mean'])}")

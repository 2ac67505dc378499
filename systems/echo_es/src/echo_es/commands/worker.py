"""`echoctl es worker`: runs workers."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import click

from echo_core import ConfigError
from echo_core.config.config import load

from ..workers.run_worker import run_worker
from ..workers.worker import Worker
from .shared import named

__all__ = ["worker"]


@click.command(name="worker", short_help="run workers of a search")
@click.argument("what")
@click.argument("address")
@click.option("--cores", type=click.IntRange(1), default=1, show_default=True, help="The largest number of individuals that a worker evaluates at once.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="How many workers to run. Each has a process of its own.")
@click.option("--experiment", help="The name of the search. It is needed only if the server has several.")
@click.option("--name", help="The worker's name in logs and statistics.")
@click.option(
    "--reconnect",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="For how many seconds a worker tries to connect again after the connection is lost.",
)
@click.option(
    "-c", "--config", type=click.Path(exists=True, path_type=Path), help="A TOML file whose [cluster] says how many workers to run, and where, such as on Ray."
)
def worker(what: str, address: str, cores: int, processes: int, experiment: str | None, name: str | None, reconnect: float, config: Path | None) -> int:
    """Work for the search at ADDRESS until it is over.

    WHAT is package.module:name. It is a function that takes candidates, shape (n, dims), and the epoch, and returns n rewards, if the server
    optimises; or else a class that derives from echo_es.Worker.

    \b
    Example: echoctl es worker my_search:evaluate tcp://learner:5555 --cores 4
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    found = named(what)
    if not callable(found):
        raise ConfigError(f"{what}: it must be a function or a class that derives from echo_es.Worker, not {type(found).__name__}")
    if config is not None:
        if processes > 1:
            raise ConfigError("-c says how many workers to run ([cluster] workers); leave out --processes")
        from ..workers.launched import start_workers

        with start_workers(load(config), what, address, cores=cores, experiment=experiment, reconnect=reconnect, name=name or "search") as running:
            running.wait()
        return 0
    if processes > 1:
        return _several(processes, what, address, cores, experiment, name, reconnect)
    if isinstance(found, type) and issubclass(found, Worker):
        made = found(address, cores, experiment=experiment, name=name, reconnect=reconnect)
        asyncio.run(made.start())
    else:
        run_worker(address, found, cores=cores, experiment=experiment, name=name, reconnect=reconnect)
    return 0


def _several(processes: int, what: str, address: str, cores: int, experiment: str | None, name: str | None, reconnect: float) -> int:
    """Run one process for each worker, and wait for all of them. Returns 1 if one has failed."""
    command = [sys.executable, "-m", "echoctl", "es", "worker", what, address, "--cores", str(cores), "--reconnect", str(reconnect)]
    command += ["--experiment", experiment] if experiment is not None else []
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(processes):
            running.append(subprocess.Popen([*command, *(["--name", f"{name}-{number}"] if name is not None else [])]))
        codes = [process.wait() for process in running]
        return int(any(codes))
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
                process.wait()

"""`echoctl ray up`, `status`, `drain` and `down`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from echo_cluster.commands import lines
from echo_core import ConfigError
from echo_core.config.config import load
from echoctl.output import json_option, print_json

__all__ = ["command"]

_LOOK = 0.25

_name = click.option("--name", default="echo", show_default=True, help="The name of the cluster.")
_config = click.option("-c", "--config", type=click.Path(exists=True, path_type=Path), help="The TOML file with [cluster].")


@click.group(name="ray", short_help="run shards and workers on a Ray cluster")
def command() -> None:
    """Run the shards and workers of [cluster] on a Ray cluster, watch them, and end them."""


@command.command(name="up", short_help="start shards and workers, and keep them")
@click.option("-c", "--config", type=click.Path(exists=True, path_type=Path), required=True, help="The TOML file with [cluster] and [[server.tables]].")
@click.option("--worker", metavar="PACKAGE.MODULE:FUNCTION", help="What each worker runs: a function of one argument, a WorkerContext.")
@_name
def up(config: Path, worker: str | None, name: str) -> int:
    """Start the shards and workers of a configuration, and keep them until Ctrl-C, SIGTERM or `echoctl ray down`.

    They end with this command. A learner in another process uses echo_ray.connect().
    """
    from .cluster import up as start

    over = threading.Event()
    before = {number: signal.signal(number, lambda *_: over.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with start(load(config), None if worker is None else _named(worker), name=name) as cluster:
            for line in lines(cluster.status()["shards"]):
                click.echo(line)
            while not over.wait(_LOOK) and not cluster.closed:
                cluster.check()
        return 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@command.command(name="status", short_help="show shards and workers")
@_config
@_name
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between two reports.")
@json_option
def status(config: Path | None, name: str, watch: bool, interval: float, as_json: bool) -> int:
    """Show the shards and workers of a cluster that runs on this Ray cluster. The exit code is 1 if a shard is not up."""

    def show(cluster: Any) -> int:
        while True:
            found = cluster.status()
            if as_json:
                print_json(found)
            else:
                if watch and os.isatty(1):
                    click.clear()
                for line in [*lines(found["shards"]), _of_workers(found["workers"]), *found["notes"]]:
                    click.echo(line)
            if not watch:
                return int(any(row["state"] not in ("up", "drained") for row in found["shards"]))
            time.sleep(interval)

    return _connected(name, show)


@command.command(name="drain", short_help="take a shard out of service")
@click.argument("shard", type=click.IntRange(0))
@_config
@_name
def drain(shard: int, config: Path | None, name: str) -> int:
    """Take the shard with the number SHARD out of service: its workers move, and it writes a checkpoint."""
    return _connected(name, lambda cluster: cluster.drain(shard))


@command.command(name="down", short_help="end a cluster")
@_config
@_name
@click.option("--timeout", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds in which it must end.")
def down(config: Path | None, name: str, timeout: float) -> int:
    """Let the workers leave, drain the shards, and end all processes of a cluster."""
    return _connected(name, lambda cluster: cluster.end_cluster(timeout))


def _connected(name: str, call: Callable[[Any], int | None]) -> int:
    from .connected import connect

    with connect(name) as cluster:
        return call(cluster) or 0


def _of_workers(workers: dict[str, Any]) -> str:
    said = f"{workers['running']} of {workers['wanted']} workers run"
    said += "".join(f", {workers[key]} {text}" for key, text in (("leaving", "leave"), ("done", "are done"), ("restarted", "restarts")) if workers[key])
    return said + (f"; {workers['fault']}" if workers["fault"] else "")


def _named(source: str) -> Any:
    """What `package.module:function` is; the folder of the command is searched as well."""
    module, colon, name = source.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        if not colon or not name:
            raise ImportError("it names nothing")
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--worker {source}: {error}; give package.module:function") from error

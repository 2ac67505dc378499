"""Starts the shards and workers of a job where `[cluster] via` says: on this machine, or on those of a scheduler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from .config import Config, load

__all__ = ["Launched", "Worker", "launch"]

#: What a worker runs. A function gets one argument, which says which worker it is and when it has to leave. Of a command, `{python}`, `{index}` and
#: `{members}` in its arguments are replaced by the interpreter, the number of the worker, and where the shards are.
Worker = Callable[[Any], object] | Sequence[str]


class Launched(Protocol):
    """Shards and workers that were started together. The entry points of the group `echo.launchers` name functions that return one:

    `launcher(config, worker, *, shards, workers, tables, token, name)`, with the arguments of `launch`.

    Attributes:
        members: says where the shards are, as clients and learners of a cluster take it.
        token: the secret of the cluster. It is absent from the repr.
    """

    members: Any
    token: Any

    def learner(self, example: Any, **options: Any) -> Any:
        """A learner that draws from all shards."""

    def client(self, example: Any, **options: Any) -> Any:
        """A worker's connection to the shards, from this process."""

    def scale(self, workers: int) -> None:
        """Start workers, or let some leave. A worker leaves by itself when it is told to, and is never killed for it."""

    def drain(self, shard: int) -> None:
        """Take one shard out of service: its workers move, and it writes a checkpoint."""

    def status(self) -> dict[str, Any]:
        """How shards and workers are, as JSON has it."""

    def check(self) -> None:
        """Raise EchoError if workers have died more often than they may."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every worker has ended by itself. Returns False if that takes longer than `timeout` seconds. Raises as `check`."""

    def down(self, timeout: float = 30.0) -> None:
        """Let the workers leave, drain the shards, and end all processes: after `timeout` seconds by killing them. Idempotent. If Ctrl-C
        interrupts it, the next call ends what is left."""

    def __enter__(self) -> Launched: ...

    def __exit__(self, *_: object) -> None: ...


def launch(
    source: str | os.PathLike[str] | Mapping[str, Any] | Iterable[Any] | Config,
    worker: Worker | None = None,
    *,
    shards: int | None = None,
    workers: int | None = None,
    tables: Sequence[Any] | None = None,
    token: Any = None,
    name: str = "echo",
) -> Launched:
    """Start shards and workers where `[cluster] via` says.

    Args:
        source: a configuration, or what `load` reads.
        worker: what the workers run; None starts none.
        shards: how many servers with the tables of `[[server.tables]]`; None takes `[cluster] shards`. 0 starts workers only, for a job whose learner
            has its own server.
        workers: how many; None takes `[cluster] workers`. A number also turns automatic scaling off.
        tables: `Table`s of each shard, in place of those of the configuration.
        token: the secret that all share. None takes that of `[security]`, or else makes one; without shards, the one that this process would show.
        name: of the cluster, in messages.

    Raises:
        ConfigError: a key or an argument does not fit. PluginNotFound: the launcher is not installed; the message says how to install it.
        What the launcher raises.
    """
    if not isinstance(source, Config):
        source = load(*([source] if isinstance(source, (str, os.PathLike, Mapping)) else source))
    launcher = source.plugin_host.launcher(source.cluster.via)
    launched: Launched = launcher(source, worker, shards=shards, workers=workers, tables=tables, token=token, name=name)
    return launched

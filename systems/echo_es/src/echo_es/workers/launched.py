"""Starts the workers of a search where `[cluster]` of a configuration says: on this machine, or on those of a scheduler."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from typing import Any

from echo_core.base.address import Address
from echo_core.config.launching import Launched, launch

from .run_worker import Evaluate, run_worker
from .worker import Worker

__all__ = ["start_workers"]


def start_workers(
    config: Any,
    what: str | Evaluate | type[Worker[Any]],
    address: str | Address,
    *,
    workers: int | None = None,
    cores: int = 1,
    experiment: str | None = None,
    reconnect: float = 60.0,
    token: Any = None,
    name: str = "search",
) -> Launched:
    """Start workers for the search at an address. `wait()` of the result returns when the search is over, and `down()` ends them.

    Args:
        config: a configuration with `[cluster]`, or what `echo_core.config.config.load` reads.
        what: as `echoctl es worker` takes it, `package.module:name`; or the function, or the class that derives from `Worker`.
        address: of the server. Workers on other machines must reach it.
        workers: how many; None takes `[cluster] workers.min`.
        token: the secret of the server; None is what this process would show.
        name: of the workers in logs.
        cores, experiment, reconnect: as in `run_worker`.

    Raises:
        What `echo_core.config.launching.launch` raises.
    """
    if isinstance(what, str):
        command = ["{python}", "-m", "echoctl", "es", "worker", what, str(address), "--cores", str(cores), "--reconnect", str(reconnect)]
        command += ["--name", f"{name}-{{index}}", *(["--experiment", experiment] if experiment is not None else [])]
        run: Any = command
    else:
        run = functools.partial(_work, what=what, address=str(address), cores=cores, experiment=experiment, reconnect=reconnect)
    return launch(config, run, shards=0, workers=workers, token=token, name=name)


def _work(context: Any, what: Any, address: str, **options: Any) -> None:
    """What one worker runs. `context` says its name, and when it has to leave; its server then gives its task to another worker at once."""
    threading.Thread(target=_leave, args=(context,), name="echo-es-leaves", daemon=True).start()
    if isinstance(what, type) and issubclass(what, Worker):
        cores = options.pop("cores")
        asyncio.run(what(address, cores, name=context.name, **options).start())
    else:
        run_worker(address, what, name=context.name, **options)


def _leave(context: Any) -> None:
    while not context.wait(60.0):
        pass
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

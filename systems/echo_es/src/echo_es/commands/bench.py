"""`echoctl es bench`: how many tasks a second a transport carries on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import click
import numpy as np

from echo_core import EchoError, EchoTimeoutError

from ..server import ESServer
from ..strategies.pgpe import PGPE
from ..workers.run_worker import run_worker
from .shared import json_option, print_json

__all__ = ["bench"]

_COME = 60.0  # seconds within which all workers have to come


@click.command(name="bench", short_help="measure tasks per second on this machine")
@click.option("--transport", default="tcp://127.0.0.1:0", show_default=True, help="Where the workers connect.")
@click.option("--workers", type=click.IntRange(1), default=4, show_default=True, help="How many worker processes to start.")
@click.option("--dims", type=click.IntRange(1), default=100, show_default=True, help="How many parameters a candidate has.")
@click.option("--cores", type=click.IntRange(1), default=1, show_default=True, help="How many individuals a task has.")
@click.option("--seconds", type=click.FloatRange(0.1), default=3.0, show_default=True, help="For how many seconds to measure.")
@json_option
def bench(transport: str, workers: int, dims: int, cores: int, seconds: float, as_json: bool) -> int:
    """Measure a search whose evaluations cost nothing: PGPE, with one task for each worker in an epoch.

    The figures show the costs of the transport, of the server and of drawing the candidates.
    """
    population = 2 * ((workers * cores + 1) // 2)  # its candidates are pairs
    command = [sys.executable, "-m", __name__]
    with ESServer(transport=transport, strategy=PGPE(dims, max(population, 2), sigma=0.1)) as server:
        processes = [subprocess.Popen([*command, str(server.address), str(cores)], stderr=subprocess.DEVNULL) for _ in range(workers)]
        try:
            deadline = time.monotonic() + _COME
            while len(server.coordinator.members()) < workers or server.rewards is None:
                if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
                    raise EchoTimeoutError(f"only {len(server.coordinator.members())} of {workers} workers have come in {_COME:.0f} s")
                time.sleep(0.02)
            before, epoch, begun = server.coordinator.counts["evaluations"], server.coordinator.epoch, time.perf_counter()
            time.sleep(seconds)
            passed = time.perf_counter() - begun
            evaluations, epochs = server.coordinator.counts["evaluations"] - before, server.coordinator.epoch - epoch
        finally:
            for process in processes:
                process.kill()
                process.wait()
    figures = {
        "transport": transport,
        "workers": workers,
        "dims": dims,
        "cores": cores,
        "evaluations_per_s": round(evaluations / passed, 1),
        "tasks_per_s": round(evaluations / cores / passed, 1),
        "epochs_per_s": round(epochs / passed, 1),
        "cpus": os.cpu_count(),
    }
    if as_json:
        print_json(figures)
    else:
        click.echo(
            f"{transport.partition(':')[0]}: {figures['evaluations_per_s']:,} evaluations/s, {figures['tasks_per_s']:,} tasks/s, "
            f"{figures['epochs_per_s']:,} epochs/s with {workers} workers and {dims} parameters"
        )
    return 0


def _work(address: str, cores: int) -> None:
    try:
        run_worker(address, lambda thetas, epoch: np.zeros(len(thetas)), cores=cores, reconnect=0.0)
    except EchoError:  # the measurement is over
        pass


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]))

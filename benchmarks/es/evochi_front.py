"""Our coordinator for Evochi's clients beside a minimal one: ``python -m benchmarks.es.evochi_front --clients FOLDER``, on Python 3.12.

    pip install --no-deps --target FOLDER evochi==0.1.4     # and grpcio, grpcio-tools and zstandard, which it needs

The workers are those of the package `evochi`, unchanged, each in a process of its own. They evaluate nothing, so what is measured is the
coordinator. `benchmarks/es/evochi_rival.py` is the other one. Both serve the same number of workers in turn, round for round; a figure is the
median of all rounds, in calls per second: a call for each task, each optimisation, and one for the state. It writes JSON with `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
POPULATION, CORES = 64, 4
LIMIT = 60.0  # seconds that a measurement may take beyond those that are measured
FRONT = f"""
from echo_es import ESServer
server = ESServer({POPULATION}, evochi="127.0.0.1:0").start()
print(server.evochi_port, flush=True)
import threading
threading.Event().wait()
"""
SERVERS = {"echo_es": ["-c", FRONT], "minimal": [str(HERE / "evochi_rival.py"), str(POPULATION)]}


def calls(server: str, workers: int, seconds: float, environment: dict[str, str]) -> float:
    """Calls per second with so many workers. Raises RuntimeError if there is no figure in time."""
    pipe = subprocess.PIPE
    processes = [subprocess.Popen([sys.executable, *SERVERS[server]], stdout=pipe, text=True, env=environment)]
    watch = threading.Timer(LIMIT + seconds, lambda: [process.kill() for process in processes])  # it ends the reading below
    watch.start()
    try:
        assert processes[0].stdout is not None
        port = processes[0].stdout.readline().strip()
        arguments = [str(HERE / "evochi_worker.py"), port, str(CORES), str(seconds), str(1.0 + 0.5 * workers)]
        processes += [subprocess.Popen([sys.executable, *arguments], stdout=pipe, text=True, env=environment) for _ in range(workers)]
        assert processes[1].stdout is not None
        epochs = processes[1].stdout.readline()
        if not epochs:
            raise RuntimeError(f"{server} with {workers} workers: no figure in {LIMIT + seconds:.0f} s, or a worker has failed")
        return float(epochs) * (POPULATION / CORES + workers + 1)
    finally:
        watch.cancel()
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", required=True, help="the folder with the package evochi")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--out", type=Path, help="a file for JSON")
    arguments = parser.parse_args()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([arguments.clients, os.environ.get("PYTHONPATH", "")])}
    found = []
    for workers in arguments.workers:
        rounds: dict[str, list[float]] = {server: [] for server in SERVERS}
        for _ in range(arguments.rounds):
            for server in SERVERS:
                rounds[server].append(calls(server, workers, arguments.seconds, environment))
        ours, other = (statistics.median(rounds[server]) for server in SERVERS)
        found.append({"workers": workers, "calls_per_second": rounds, "ratio": ours / other})
        print(f"{workers} workers: {ours:7.0f} calls/s, the minimal coordinator {other:7.0f}: {ours / other:.2f}", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

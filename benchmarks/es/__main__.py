"""A search with many workers whose tasks cost nothing: ``python -m benchmarks.es``.

| mode | workers |
|---|---|
| `parked` | ask for a task with `es/next`, whose answer comes when there is one |
| `polling` | are answered at once, and ask again after 0.5 ms, then after twice as long, up to 20 ms |
| `run_worker` | are those of `echo_es.run_worker`, which draw their candidates |

The server is an `ESServer` with a strategy of two parameters, in a process of its own. The first two modes send the same reports to the same
coordinator, from bare clients, so the difference between them is the waiting alone. An epoch has one task for each worker unless `--population` says
otherwise. All modes alternate within one run, round for round, and a figure is the median with the lowest and the highest. The server counts the
tasks, its threads, and its CPU time. It writes JSON with `--out`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.report import factor, number

MODES = ("parked", "polling", "run_worker")
PAUSES = (0.0005, 0.02)  # seconds between two requests of a worker that polls: at first, and at most
LIMIT = 120.0  # seconds after which a measurement has failed
Figures = dict[str, float]


# ---- the process of the server ------------------------------------------------------------------------------------------


def serve(transport: str, workers: int, population: int, seconds: float) -> None:
    """Print the address, wait for the workers, measure, and print the figures."""
    from echo_es import ESServer
    from echo_es.strategies import PGPE

    logging.getLogger("echo").setLevel(logging.ERROR)  # workers are killed, which is logged
    with ESServer(transport=transport, strategy=PGPE(2, population, sigma=0.1)) as server:
        _serve_polling(server)
        alone = _threads()
        print(server.address, flush=True)
        deadline = time.monotonic() + LIMIT
        while server.stats()["es/workers"] < workers:
            if time.monotonic() > deadline:
                raise SystemExit(f"only {server.stats()['es/workers']} of {workers} workers have come in {LIMIT:.0f} s")
            time.sleep(0.05)
        time.sleep(1.0)
        before, start, cpu = server.coordinator.counts["evaluations"], time.perf_counter(), time.process_time()
        time.sleep(seconds)
        passed = time.perf_counter() - start
        done = server.coordinator.counts["evaluations"] - before
        figures = {"tasks": done / passed, "cpu": (time.process_time() - cpu) / passed, "threads": _threads(), "threads_alone": alone}
        print(json.dumps(figures), flush=True)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _serve_polling(server: Any) -> None:
    """Add `bench/poll`: `es/next`, but a worker for which there is nothing is told so at once."""
    import numpy as np

    coordinator = server.coordinator
    members: dict[str, Any] = {}

    def poll(_: Any, peer: Any, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        member = members.get(peer.id)
        if member is None:
            member = members[peer.id] = next(one for one in coordinator.members() if one.id == peer.id)
        if "done" in body:
            coordinator.report(member, body["done"], np.frombuffer(blob, np.float64))
        given: list[Any] = []
        coordinator.take(member, lambda task: given.append(task) is None)
        if not given:
            coordinator.disconnected(member)  # it does not wait: a task for it is kept until it asks again
        return ({"task": given[0].id, "n": sum(part.stop - part.start for part in given[0].slices)} if given else {}), b""

    server.server.serve("bench/poll", poll)


# ---- the processes of the workers ---------------------------------------------------------------------------------------


def work(address: str, mode: str, count: int) -> None:
    """Have `count` workers in this process, each on a thread of its own."""
    one = {"parked": _parked, "polling": _polling, "run_worker": _run_worker}[mode]
    threading.stack_size(256 << 10)
    threads = [threading.Thread(target=one, args=(address,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _joined(address: str) -> Any:
    from echo_core import Client
    from echo_es.server import EXAMPLE

    client = Client(address, EXAMPLE, timeout=LIMIT)
    client.request("es/join", {"api": 1, "cores": 1, "run": None, "version": None})
    return client


def _parked(address: str) -> None:
    from echo_core import EchoError

    client, body, blob = _joined(address), {}, b""
    try:
        while True:
            task, _ = client.request("es/next", body, blob, timeout=LIMIT)
            body, blob = {"done": task["task"]}, bytes(8 * sum(stop - start for start, stop in task["slices"]))
    except EchoError:
        pass


def _polling(address: str) -> None:
    from echo_core import EchoError

    client, body, blob, pause = _joined(address), {}, b"", PAUSES[0]
    try:
        while True:
            task, _ = client.request("bench/poll", body, blob, timeout=LIMIT)
            if task:
                body, blob, pause = {"done": task["task"]}, bytes(8 * task["n"]), PAUSES[0]
            else:
                body, blob = {}, b""
                time.sleep(pause)
                pause = min(2 * pause, PAUSES[1])
    except EchoError:
        pass


def _run_worker(address: str) -> None:
    import numpy as np

    from echo_core import EchoError
    from echo_es import run_worker

    try:
        run_worker(address, lambda thetas, epoch: np.zeros(len(thetas)))
    except EchoError:
        pass


# ---- the process that measures ------------------------------------------------------------------------------------------


def measure(mode: str, args: argparse.Namespace) -> Figures:
    """The figures of one round. Raises RuntimeError if it takes too long or fails."""
    command = [sys.executable, "-m", "benchmarks.es"]
    of_server = ["serve", args.transport, str(args.workers), str(args.population or args.workers), str(args.seconds)]
    processes = [subprocess.Popen([*command, *of_server], stdout=subprocess.PIPE, text=True)]
    pipe = processes[0].stdout
    assert pipe is not None
    watch = threading.Timer(2 * LIMIT + args.seconds, processes[0].kill)
    watch.start()
    try:
        address = pipe.readline().strip()
        shares = [args.workers // args.processes + (n < args.workers % args.processes) for n in range(args.processes)]
        processes += [subprocess.Popen([*command, "work", address, mode, str(share)], stderr=subprocess.DEVNULL) for share in shares]
        figures: Figures = json.loads(pipe.readline() or "null")
        if figures is None:
            raise RuntimeError(f"{mode}: the server has printed no figures, or was ended after {2 * LIMIT:.0f} s")
        return figures
    finally:
        watch.cancel()
        for process in processes:
            process.kill()
            process.wait()
        pipe.close()


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        return serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    if sys.argv[1:2] == ["work"]:
        return work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.es", description="A search with many workers whose tasks cost nothing.")
    parser.add_argument("--transport", default="tcp://127.0.0.1:0")
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2, help="that the workers share")
    parser.add_argument("--population", type=int, help="individuals of an epoch; as many as workers by default")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--out", type=Path, help="a file for JSON")
    args = parser.parse_args()
    found: dict[str, list[Figures]] = {mode: [] for mode in args.modes}
    for _ in range(args.rounds):
        for mode, rounds in found.items():
            rounds.append(measure(mode, args))
    for mode, rounds in found.items():
        tasks = [figures["tasks"] for figures in rounds]
        cpu = statistics.median(figures["cpu"] for figures in rounds)
        threads = max(figures["threads"] for figures in rounds)
        alone = max(figures["threads_alone"] for figures in rounds)
        print(
            f"{mode:10} {number(statistics.median(tasks))} tasks/s ({number(min(tasks))} to {number(max(tasks))}) with {args.workers} workers; "
            f"the server has {threads:.0f} threads ({alone:.0f} without workers) and uses {cpu:.2f} CPUs"
        )
    if {"parked", "polling"} <= found.keys():
        ratios = [parked["tasks"] / polling["tasks"] for parked, polling in zip(found["parked"], found["polling"])]
        print(f"parked over polling: {factor(statistics.median(ratios))} ({factor(min(ratios))} to {factor(max(ratios))})")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

"""What parked requests cost a stream of samples: ``python -m benchmarks.parked``.

Each of many clients parks many requests at the learner, and none is answered while the samples are counted. Runs with parked requests and runs without them
alternate, so that the ratio holds on a machine with neighbours. The clients are connected in both. At the end each request is answered, and each client
counts its answers.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import factor, number

EXAMPLE = {"obs": np.zeros(64, np.float32), "action": np.zeros(4, np.float32)}
BATCH_SIZE = 64
WAIT_SECONDS = 120.0
ROOT = Path(__file__).resolve().parents[1]


def ask(address: str, clients: int, requests: int) -> None:
    """A process with `clients` connections, each of which parks `requests` requests and checks their answers. It ends with its standard input."""
    from echo_core import Client

    with ExitStack() as ending:
        all_of_them = [ending.enter_context(Client(address, EXAMPLE)) for _ in range(clients)]
        pending = [(n, client._requests.ask("bench/park", {"n": n})) for client in all_of_them for n in range(requests)]
        for n, one in pending:
            body, _ = one(WAIT_SECONDS)
            if body != {"n": n}:
                raise SystemExit(f"request {n} got the answer {body}")
        sys.stdin.read()


def send(address: str) -> None:
    """A process that sends samples until it is killed."""
    from echo_core import Client

    client, sample = Client(address, EXAMPLE), EXAMPLE
    while True:
        client.send(sample)


def started(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.parked", *arguments], cwd=ROOT, stdin=subprocess.PIPE)


def run(transport: str, clients: int, processes: int, requests: int, senders: int, seconds: float) -> float:
    """Samples a second while each client has `requests` parked requests. Raises if one of them is not answered exactly once."""
    from echo_core import Later, Server

    parked: list[tuple[Any, int]] = []

    def park(server: Any, peer: Any, body: dict[str, Any], blob: bytes) -> Any:
        later = Later(peer)
        parked.append((later, body["n"]))
        return later

    taken = 0
    with ExitStack() as ending:
        server = ending.enter_context(Server(EXAMPLE, BATCH_SIZE, transport, num_buffers=8))
        server.serve("bench/park", park)

        def take() -> None:
            nonlocal taken
            for _ in server.dataset_iter():
                taken += BATCH_SIZE

        consumer = threading.Thread(target=take, daemon=True)
        consumer.start()
        asking = [started("ask", str(server.address), str(clients // processes), str(requests)) for _ in range(processes)]
        sending = [started("send", str(server.address)) for _ in range(senders)]
        for process in (*asking, *sending):
            ending.callback(process.kill)
        clients -= clients % processes
        total = clients * requests
        wait_for(lambda: len(server.peers()) == clients + senders and len(parked) == total and taken > 100 * BATCH_SIZE)
        before, start = taken, time.perf_counter()
        time.sleep(seconds)
        rate = (taken - before) / (time.perf_counter() - start)
        accepted = sum(later({"n": n}) for later, n in parked)
        for process in asking:
            assert process.stdin is not None
            process.stdin.close()
        codes = [process.wait(WAIT_SECONDS) for process in asking]
        if accepted != total or any(codes) or server.stats()["clients/parked"]:
            raise RuntimeError(f"{total} requests were parked, {accepted} answers were taken, the processes of the clients ended with {codes}")
    return rate


def wait_for(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError("the clients do not get so far")
        time.sleep(0.01)


def main() -> None:
    if sys.argv[1:2] == ["ask"]:
        return ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    if sys.argv[1:2] == ["send"]:
        return send(sys.argv[2])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parked", description=__doc__)
    parser.add_argument("--transport", default="tcp://127.0.0.1:0")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--processes", type=int, default=4, help="that the clients share")
    parser.add_argument("--requests", type=int, default=100, help="that each client parks")
    parser.add_argument("--senders", type=int, default=1, help="processes that send samples")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured each")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    logging.getLogger("echo").setLevel(logging.ERROR)  # senders are killed, which is logged
    rates: dict[int, list[float]] = {args.requests: [], 0: []}
    for _ in range(args.rounds):
        for requests, found in rates.items():
            found.append(run(args.transport, args.clients, args.processes, requests, args.senders, args.seconds))
    for requests, found in rates.items():
        print(f"{requests:4} requests parked by each of {args.clients} clients: {number(statistics.median(found))} samples/s")
    print(f"with over without: {factor(statistics.median(a / b for a, b in zip(*rates.values())))}")


if __name__ == "__main__":
    main()

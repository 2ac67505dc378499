"""Learners that wait for a batch of a remote table: ``python -m benchmarks.waiting``.

Their requests wait at the table, in the order in which they came. Beside it stands what a client would do if they could not: it asks again and
again, after pauses. For each transport and both ways the benchmark shows the server's CPU while many clients wait and nothing arrives, and the
time from an insert in the server's process to the batch in the process of a client that waits for it.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

PAUSES = (0.001, 0.05)  # seconds between two requests of a client that asks again and again: at first, and at most
PROCESSES = 2  # that the clients share
EXAMPLE = {"at": np.float64(0)}


def polled(client: Any) -> float:
    """The next item by a client that asks again and again."""
    pause = PAUSES[0]
    while "wait" in (answer := client.request("sample", {"n": 1}))[0]:
        time.sleep(pause)
        pause = min(2 * pause, PAUSES[1])
    return float(np.frombuffer(answer[1][-8:], np.float64)[0])  # keys, probabilities, and the leaf


def wait_for_items(address: str, way: str, count: int) -> None:
    """A process with `count` clients. It prints one line for each item: the seconds since its insert."""
    from echo_core import Client, EchoError

    logging.getLogger("echo").setLevel(logging.ERROR)  # that they wait is what is measured

    def one() -> None:
        client = Client(address, EXAMPLE, timeout=600.0)
        try:
            while True:
                at = polled(client) if way == "polling" else float(client.sample(1).batch["at"][0])
                os.write(1, f"{time.monotonic() - at}\n".encode())
        except EchoError:
            pass

    for _ in range(count):
        threading.Thread(target=one, daemon=True).start()
    sys.stdin.read()  # until the benchmark ends


class Clients:
    """Processes of waiting clients, and what they print."""

    def __init__(self, ending: ExitStack, address: str, way: str, count: int) -> None:
        self.seconds: list[float] = []
        processes = min(PROCESSES, count)
        for _ in range(processes):
            command = [sys.executable, "-m", "benchmarks.waiting", "wait", address, way, str(count // processes)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            ending.callback(process.kill)
            threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, lines: Any) -> None:
        for line in lines:
            self.seconds.append(float(line))


def measure(transport: str, way: str, count: int, seconds: float, items: int) -> tuple[float, list[float]]:
    """The server's CPU seconds for each second while `count` clients wait, and the seconds from insert to batch of `items` items."""
    from echo_core import Queue, Server, Table

    table = Table("queue", EXAMPLE, capacity=1000, sampler="fifo", rate_limiter=Queue(1000))
    with ExitStack() as ending:
        server = ending.enter_context(Server(tables=[table], batch_size=1, transport=transport))
        clients = Clients(ending, str(server.address), way, count)
        while len(server.peers()) < count:
            time.sleep(0.05)
        time.sleep(5.0)  # until each was told once why it waits, and those that ask again have reached their longest pause
        start, cpu = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        used = (time.process_time() - cpu) / (time.perf_counter() - start)
        for number in range(1, items + 1):
            server.submit({"at": np.float64(time.monotonic())})
            while len(clients.seconds) < number:
                time.sleep(0.002)
            time.sleep(0.02)
        return used, clients.seconds


def main() -> None:
    if sys.argv[1:2] == ["wait"]:
        return wait_for_items(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waiting", description=__doc__)
    parser.add_argument("--transports", default=f"tcp://127.0.0.1:0,shm://waiting-{os.getpid()},grpc://127.0.0.1:0", help="addresses, with commas")
    parser.add_argument("--clients", default="1,100", help="how many wait, with commas")
    parser.add_argument("--seconds", type=float, default=5.0, help="for which the CPU is measured")
    parser.add_argument("--items", type=int, default=200, help="whose latency is measured")
    args = parser.parse_args()
    logging.getLogger("echo").setLevel(logging.ERROR)  # clients are killed, which is logged
    for transport in args.transports.split(","):
        for count in map(int, args.clients.split(",")):
            for way in ("parked", "polling"):
                used, seconds = measure(transport, way, count, args.seconds, args.items)
                p50, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]
                print(
                    f"{transport.split(':')[0]:5} {count:4} waiting, {way:8} server's CPU {1e3 * used:7.2f} ms/s,"
                    f" insert to batch p50 {1e6 * p50:6.0f} us, p99 {1e6 * p99:6.0f} us",
                    flush=True,
                )


if __name__ == "__main__":
    main()

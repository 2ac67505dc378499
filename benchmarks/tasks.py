"""Tasks for many workers, and calls of a learner to a worker: ``python -m benchmarks.tasks``.

Workers ask for tasks that cost nothing and give their results with the next request; an epoch of tasks ends when all results are there. In
one mode a request that finds no task is parked, in the other it is answered at once, and the worker asks again after a pause. Both modes, and
both kinds of round trips, alternate within one run, so that the ratios hold on a machine with neighbours.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.report import factor, number

PAUSES = (0.0005, 0.02)  # seconds between two requests of a worker that polls: at first, and at most
ROUND_TRIPS = 2000
EXAMPLE = {"obs": np.zeros(4, np.float32)}


class Tasks:
    """The learner's side: epochs of `size` tasks, one after another."""

    def __init__(self, server: Any, size: int) -> None:
        from echo_core import Later

        self._later: Callable[[Any], Any] = Later
        self._size = size
        self._lock = threading.Lock()
        self._waiting: deque[Any] = deque()
        self._left, self._missing = size, size
        self.done = 0
        server.serve("tasks/next", self._next)
        server.serve("tasks/poll", self._poll)

    def _take(self, body: dict[str, Any]) -> tuple[bool, list[Any]]:
        """Whether there is a task for who asks; and others, who have waited and get one."""
        others: list[Any] = []
        if "done" in body:
            self.done += 1
            self._missing -= 1
            if self._missing == 0:
                self._left = self._missing = self._size
                while self._waiting and self._left:
                    others.append(self._waiting.popleft())
                    self._left -= 1
        if not self._left:
            return False, others
        self._left -= 1
        return True, others

    def _next(self, server: Any, peer: Any, body: dict[str, Any], blob: bytes) -> Any:
        with self._lock:
            got, others = self._take(body)
            later = None if got else self._later(peer)
            if later is not None:
                self._waiting.append(later)
        for other in others:
            other({"task": 1})
        return ({"task": 1}, b"") if later is None else later

    def _poll(self, server: Any, peer: Any, body: dict[str, Any], blob: bytes) -> Any:
        with self._lock:
            got, _ = self._take(body)
        return ({"task": 1} if got else {}), b""


def work(address: str, mode: str, count: int) -> None:
    """A process with `count` workers, each with a connection and a thread of its own."""
    from echo_core import Client, EchoError

    def one() -> None:
        client, body, pause = Client(address, EXAMPLE), {}, PAUSES[0]
        try:
            while True:
                got = client.request(f"tasks/{mode}", body, timeout=60.0)[0]
                body = {"done": 1} if got else {}
                if not got:
                    time.sleep(pause)
                pause = PAUSES[0] if got else min(2 * pause, PAUSES[1])
        except EchoError:
            pass

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()


def answer(address: str) -> None:
    """A process with one worker that serves calls, and measures its own requests when it is told to."""
    from echo_core import Client

    client = Client(address, EXAMPLE)
    client.serve("bench/echo", lambda body, blob: (body, blob))

    def measure(body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        return {"seconds": round_trip(lambda: client.request("bench/here", {"n": 1}, b"x" * 100), body["n"])}, b""

    client.serve("bench/measure", measure)
    time.sleep(3600)


def round_trip(call: Callable[[], Any], n: int) -> float:
    """The median seconds of a call."""
    for _ in range(n // 10):
        call()
    times = []
    for _ in range(n):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def started(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.tasks", *arguments])


def rate(transport: str, mode: str, workers: int, processes: int, size: int, seconds: float) -> tuple[float, float]:
    """Tasks a second, and the CPU seconds of the learner for each second."""
    from echo_core import Server

    with ExitStack() as ending:
        server = ending.enter_context(Server(EXAMPLE, 32, transport=transport))
        tasks = Tasks(server, size)
        for _ in range(processes):
            ending.callback(started("work", str(server.address), mode, str(workers // processes)).kill)
        while len(server.peers()) < workers:
            time.sleep(0.05)
        time.sleep(0.5)
        before, start, cpu = tasks.done, time.perf_counter(), time.process_time()
        time.sleep(seconds)
        passed = time.perf_counter() - start
        return (tasks.done - before) / passed, (time.process_time() - cpu) / passed


def round_trips(transport: str, rounds: int) -> tuple[list[float], list[float]]:
    """Median seconds of a client's requests, and of the server's calls, in turn."""
    from echo_core import Server

    with Server(EXAMPLE, 32, transport=transport) as server:
        server.serve("bench/here", lambda server, peer, body, blob: (body, blob))
        worker = started("answer", str(server.address))
        try:
            while not server.peers():
                time.sleep(0.05)
            peer = server.peers()[0]
            up, down = [], []
            for _ in range(rounds):
                up.append(server.ask(peer, "bench/measure", {"n": ROUND_TRIPS}, timeout=60.0)[0]["seconds"])
                down.append(round_trip(lambda: server.ask(peer, "bench/echo", {"n": 1}, b"x" * 100), ROUND_TRIPS))
            return up, down
        finally:
            worker.kill()


def main() -> None:
    if sys.argv[1:2] == ["work"]:
        return work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    if sys.argv[1:2] == ["answer"]:
        return answer(sys.argv[2])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--transport", default="tcp://127.0.0.1:0")
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2, help="that the workers share")
    parser.add_argument("--epoch", type=int, default=200, help="tasks of an epoch")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured each")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    logging.getLogger("echo").setLevel(logging.ERROR)  # workers are killed, which is logged
    rates: dict[str, list[tuple[float, float]]] = {"next": [], "poll": []}
    for _ in range(args.rounds):
        for mode, found in rates.items():
            found.append(rate(args.transport, mode, args.workers, args.processes, args.epoch, args.seconds))
    for mode, title in (("next", "parked"), ("poll", "polling")):
        tasks, cpu = (statistics.median(column) for column in zip(*rates[mode]))
        print(f"{title:8} {number(tasks)} tasks/s with {args.workers} workers, learner's CPU {cpu:.2f}")
    ratio = statistics.median(parked[0] / polling[0] for parked, polling in zip(rates["next"], rates["poll"]))
    print(f"parked over polling: {factor(ratio)}")
    up, down = round_trips(args.transport, args.rounds)
    print(f"round trips, p50: request {1e6 * statistics.median(up):.0f} us, ask {1e6 * statistics.median(down):.0f} us")
    print(f"ask over request: {factor(statistics.median(there / here for here, there in zip(up, down)))}")


if __name__ == "__main__":
    main()

"""A worker process: ``python -m benchmarks.worker JOB``. Connects, says so, waits for "go", sends.

It never stops by itself: the learner's process kills it, because some systems hang when asked to
stop. The roles differ only in the loop.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from benchmarks import adapters
from benchmarks.adapters.base import System
from benchmarks.payloads import PAYLOADS, Payload, Tree
from benchmarks.processes import allow_open_files, die_with

#: Samples per call of ``send_batch``.
STACK = 64

#: The work of a role after it has connected. It holds on to its worker: a client that nobody refers
#: to closes its connection, even where one of its methods is still in use.
Loop = Callable[[], NoReturn]


def _flood(system: System, job: dict[str, Any], payload: Payload) -> Loop:
    worker = system.worker(job["address"], payload)
    samples = payload.samples()
    return lambda: worker.flood(samples)


def _flood_batch(system: System, job: dict[str, Any], payload: Payload) -> Loop:
    worker = system.worker(job["address"], payload)
    stacked = payload.stacked(STACK)

    def loop() -> NoReturn:
        send_batch = worker.send_batch
        while True:
            send_batch(stacked)

    return loop


def _pace(system: System, job: dict[str, Any], payload: Payload) -> Loop:
    """One sample every few milliseconds, each carrying the time at which it was sent.

    The pause is random, because a fixed one may fall in step with somebody's polling interval.
    """
    worker = system.worker(job["address"], payload)
    sample = payload.samples(1)[0]
    stamp = payload.leaf(sample, payload.paths[0]).reshape(-1)[:2].view(np.int64)
    now, pause = time.monotonic_ns, random.Random(7).uniform

    def loop() -> NoReturn:
        send = worker.send
        while True:
            time.sleep(pause(0.001, 0.003))
            stamp[0] = now()
            send(sample)

    return loop


def _follow(system: System, job: dict[str, Any], payload: Payload) -> Loop:
    """Wait for weights; send for each version when it was published and when it was here."""
    worker = system.worker(job["address"], payload)
    sample = payload.samples(1)[0]
    stamps = payload.leaf(sample, payload.paths[0]).reshape(-1)[:4].view(np.int64)
    now = time.monotonic_ns

    def loop() -> NoReturn:
        version = 0
        worker.send(sample)  # it waits
        while True:
            params, version = worker.weights(version)
            stamps[1] = now()
            stamps[0] = params["published"][0]
            worker.send(sample)

    return loop


def _idle(system: System, job: dict[str, Any], payload: Payload) -> Loop:
    worker = system.worker(job["address"], payload)
    sample = payload.samples(1)[0]

    def loop() -> NoReturn:
        worker.send(sample)  # some systems only set up a connection fully with its first message
        while True:
            time.sleep(60)

    return loop


def _end_process(args: threading.ExceptHookArgs) -> None:
    """A connection of a crowd that fails ends the whole process, so that the learner notices."""
    threading.__excepthook__(args)
    os._exit(1)


def _crowd(system: System, job: dict[str, Any], payload: Payload) -> Loop:
    """Many connections in one process, a thread each, every sample marked with its connection."""
    allow_open_files(4096)
    threading.stack_size(256 << 10)
    # With the default of 5 ms, a round of a hundred busy threads takes longer than the whole run,
    # and the interpreter's fairness would be measured in place of the server's.
    sys.setswitchinterval(0.0002)
    threading.excepthook = _end_process
    # A gate each: an Event lets its waiters through one by one, behind those already sending.
    gates = {number: threading.Lock() for number in job["connections"]}

    def run(number: int) -> None:
        sample: Tree = payload.samples(1)[0]
        payload.leaf(sample, payload.paths[0])[...] = number
        worker = system.worker(job["address"], payload)
        connected.release()
        gates[number].acquire()
        worker.flood([sample])

    connected = threading.Semaphore(0)
    for number, gate in gates.items():
        gate.acquire()
        threading.Thread(target=run, args=(number,), daemon=True).start()
        # One after the other: a stampede of handshakes is another benchmark.
        connected.acquire()

    def loop() -> NoReturn:
        for gate in gates.values():
            gate.release()
        while True:
            time.sleep(60)

    return loop


ROLES = {
    "flood": _flood,
    "flood-batch": _flood_batch,
    "pace": _pace,
    "follow": _follow,
    "idle": _idle,
    "crowd": _crowd,
}


def main() -> None:
    job = json.loads(sys.argv[1])
    die_with(job["parent"])
    # The pipe is for our one line; whatever a system prints goes to the error stream.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loop = ROLES[job["role"]](adapters.load(job["system"]), job, PAYLOADS[job["payload"]])
    print("connected", file=report, flush=True)
    if sys.stdin.readline() == "go\n":
        loop()


if __name__ == "__main__":
    main()

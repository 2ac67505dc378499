"""A learner and collectors for test_async_runner.py. A module of its own, because spawned processes import it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from echo_ipc import AsyncRunner, Cell, Ring, RolloutRingBuffer, Rows
from echo_ipc._native import start_of
from echo_ipc.async_runner import _SPAWN_CTX


class Runner(AsyncRunner):
    def _get_default_device(self) -> str:
        return "cpu"

    def _build_learner(self) -> Any:
        return None

    def learn(self, max_iterations: int, save_interval: int = 50, log_dir: str = "logs") -> None:
        self._iterate(max_iterations, save_interval, log_dir, lambda number: {"number": number}, progress=False)


def runner(**options: Any) -> Runner:
    return Runner("Env", {}, {}, **options)


def obey(stop_event: Any, answers: Any = None, **more: Any) -> None:
    if answers is not None:
        answers.put(more)
    stop_event.wait(60)


def be_deaf(stop_event: Any, ready: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    while True:
        time.sleep(60)


def fail(stop_event: Any, size: int = 10, metrics_queue: Any = None) -> None:
    sys.stderr = io.StringIO()
    raise ValueError("x" * size)


def fail_once(stop_event: Any, marker: str) -> None:
    """The first one fails; the next ones obey."""
    sys.stderr = io.StringIO()
    if not os.path.exists(marker):
        Path(marker).touch()
        raise ValueError("the first one fails")
    stop_event.wait(60)


def first_fails(stop_event: Any, collector_index: int) -> None:
    sys.stderr = io.StringIO()
    if collector_index:
        stop_event.wait(60)  # it ends first, without an error
    else:
        raise ValueError("the first one fails")


def fail_once_then_put(stop_event: Any, ring: Ring, marker: str) -> None:
    sys.stderr = io.StringIO()
    if not os.path.exists(marker):
        Path(marker).touch()
        raise ValueError("the first one fails")
    ring.put({"x": np.int64(7)})
    stop_event.wait(60)


def wait_for(stop_event: Any, what: str, ring: Ring, cell: Cell, rows: Rows, ready: Any) -> None:
    """Wait without a timeout for what the learner never does."""
    while ready.set() or not stop_event.is_set():
        if what == "claim":
            ring.put({"x": np.int64(1)})
        elif what == "take":
            ring.take().release()
        else:
            cell.wait() if what == "version" else rows.wait()


def start_another(stop_event: Any, answers: Any, crash: bool) -> None:
    other = subprocess.Popen(["sleep", "600"])
    answers.put((other.pid, start_of(other.pid)))
    answers.close()
    answers.join_thread()
    if crash:
        os.kill(os.getpid(), signal.SIGKILL)
    stop_event.wait(60)


def write_rollouts_and_die(ring: RolloutRingBuffer, count: int) -> None:
    for _ in range(count):
        ring.signal_write_done()
    os.kill(os.getpid(), signal.SIGKILL)


def fill_the_ring(stop_event: Any, ring: RolloutRingBuffer, full: Any) -> None:
    while not stop_event.is_set():
        if ring.available() == ring.num_slots:
            full.set()
        ring.signal_write_done()


class CannotBeImported:
    """Its arguments cannot be unpickled in the collector."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _missing, ()


def _missing() -> None:
    raise ImportError("no module named simulator")


def learner_that_is_killed() -> None:
    """Start two collectors that end by themselves for nothing and have a child each, tell the numbers of all four, and wait to be killed."""
    owner = runner(num_collectors=2)
    children = _SPAWN_CTX.Queue()
    owner._start_collector(be_deaf_of, {"stop_event": owner._stop_event, "children": children})
    started = [children.get(timeout=60) for _ in range(2)]
    print(json.dumps([collector.process.pid for collector in owner._collectors] + started), flush=True)
    time.sleep(600)


def be_deaf_of(stop_event: Any, children: Any, collector_index: int) -> None:
    children.put(subprocess.Popen(["sleep", "600"]).pid)
    be_deaf(stop_event, _SPAWN_CTX.Event())


if __name__ == "__main__":
    learner_that_is_killed()

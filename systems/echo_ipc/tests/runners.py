"""A learner and collectors for test_async_runner.py. A module of its own, because spawned processes import it."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from echo_ipc import AsyncRunner, RolloutRingBuffer
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
    """Start two collectors that end by themselves for nothing, tell their numbers, and wait to be killed."""
    owner = runner(num_collectors=2)
    ready = _SPAWN_CTX.Event()
    owner._start_collector(be_deaf_of, {"stop_event": owner._stop_event, "ready": ready})
    ready.wait(60)
    print(json.dumps([collector.process.pid for collector in owner._collectors]), flush=True)
    time.sleep(600)


def be_deaf_of(stop_event: Any, ready: Any, collector_index: int) -> None:
    be_deaf(stop_event, ready)


if __name__ == "__main__":
    learner_that_is_killed()

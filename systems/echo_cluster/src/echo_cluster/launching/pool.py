"""The workers of one machine: as many processes as are wanted, started again when they die, within a budget."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
import time
from collections import deque
from typing import Any

from .child import COMMAND, Packed, given_to

__all__ = ["WITHIN_SECONDS", "WorkerPool"]

_log = logging.getLogger("echo")

LOOK_SECONDS = 0.1
WITHIN_SECONDS = 600.0  # in which the deaths of workers are counted
INSIST_SECONDS = 10.0  # after which a command that has to leave gets SIGTERM, too


class WorkerPool:
    """Keeps `n` workers on this machine alive, until they end by themselves with the exit code 0.

    A worker that dies is started again, unless more than `restarts` have died within the last 10 minutes: then no more are started, and
    `figures()["fault"]` says so. With a fault that every worker has, a pool without such a budget would start processes for ever.

    A worker that has to leave is told so: a function by its `WorkerContext`, a command by SIGINT. Only `close` kills, after its timeout.

    Args:
        worker: what each runs.
        name: of the cluster.
        members: where the shards are, for the workers.
        token: the secret of the cluster.
        restarts: how many may be started again within 10 minutes.
        first: the number of the first worker.
    """

    def __init__(self, worker: Packed, *, name: str, members: Any, token: bytes, restarts: int = 5, first: int = 0) -> None:
        self._worker, self._name, self._members, self._token = worker, name, members, token
        self._restarts, self._first = restarts, first
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._target = 0
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._leaving: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
        self._done: set[int] = set()
        self._deaths: deque[float] = deque()
        self._restarted = 0
        self._fault = ""
        self._trouble = ""  # why the last start has failed
        self._closed = False
        # The kernel tells a command that its parent is gone when the thread ends that has started it. So one thread starts all.
        self._watching = threading.Thread(target=self._watch, name="echo-worker-pool", daemon=True)
        self._watching.start()

    def set(self, n: int) -> None:
        """Have n workers from now on: start some, or let those with the highest numbers leave."""
        with self._lock:
            self._target = n
            self._done = {index for index in self._done if index < self._first + n}
        self._changed.set()

    def figures(self) -> dict[str, Any]:
        """How the workers are: numbers of them, process ids by worker, and why no more are started."""
        with self._lock:
            return {
                "wanted": self._target,
                "running": {index: process.pid for index, process in sorted(self._running.items())},
                "leaving": len(self._leaving),
                "done": len(self._done),
                "restarted": self._restarted,
                "fault": self._fault,
            }

    def close(self, timeout: float = 30.0) -> None:
        """Let all leave; kill those that have not left after `timeout` seconds. Idempotent."""
        self.set(0)
        ends = time.monotonic() + timeout
        while self._watching.is_alive() and time.monotonic() < ends:
            with self._lock:
                if not self._running and not self._leaving:
                    break
            time.sleep(0.02)
        self._closed = True
        self._changed.set()
        self._watching.join()
        # Some are still among the running ones if the time was over before the thread has looked, or if that thread has failed.
        for index, process in [*self._running.items(), *((index, process) for index, (process, _) in self._leaving.items())]:
            if process.poll() is None:
                _log.warning("worker %s-%d did not leave within %g s, and is killed", self._name, index, timeout)
                process.kill()
                process.wait()
            _close_input(process)
        self._running.clear()
        self._leaving.clear()

    def _watch(self) -> None:
        while not self._closed:
            with self._lock:
                self._look()
            self._changed.wait(LOOK_SECONDS)
            self._changed.clear()

    def _look(self) -> None:
        for index, process in list(self._running.items()):
            if (code := process.poll()) is not None:
                del self._running[index]
                _close_input(process)
                if code == 0:
                    self._done.add(index)
                else:
                    self._died(index, code)
        for index, (process, since) in list(self._leaving.items()):
            if process.poll() is not None:
                del self._leaving[index]
            elif self._worker.command is not None and time.monotonic() - since > INSIST_SECONDS:
                process.terminate()
        wanted = range(self._first, self._first + self._target)
        for index in [index for index in self._running if index not in wanted]:
            self._leave(index)
        for index in wanted:
            if index not in self._running and index not in self._done and index not in self._leaving and not self._fault:
                try:
                    self._start(index)
                except OSError as error:  # a limit of processes or descriptors, which others may have reached: the next look tries again
                    if str(error) != self._trouble:  # once for each error
                        self._trouble = str(error)
                        _log.warning("worker %s-%d cannot be started: %s; it is tried again", self._name, index, error)
                    break
                self._trouble = ""

    def _start(self, index: int) -> None:
        # The terminal's Ctrl-C goes to a whole group of processes; workers are told by their pool instead.
        process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, start_new_session=True)
        self._running[index] = process
        try:
            assert process.stdin is not None
            process.stdin.write(given_to(self._worker, index, self._name, self._members, self._token))
            process.stdin.flush()
        except BrokenPipeError:  # it has died, which the next look finds
            pass

    def _leave(self, index: int) -> None:
        process = self._running.pop(index)
        self._leaving[index] = process, time.monotonic()
        _close_input(process)
        if self._worker.command is not None:
            process.send_signal(signal.SIGINT)

    def _died(self, index: int, code: int) -> None:
        now = time.monotonic()
        while self._deaths and now - self._deaths[0] > WITHIN_SECONDS:
            self._deaths.popleft()
        self._deaths.append(now)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        if len(self._deaths) > self._restarts:
            self._fault = f"{len(self._deaths)} workers have died within 10 minutes, the last one {how}; no more are started. Their own output says why"
            _log.error("cluster %s: %s", self._name, self._fault)
            return
        self._restarted += 1
        _log.warning("worker %s-%d has ended %s; it is started again (%d of at most %d times)", self._name, index, how, len(self._deaths), self._restarts)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.close()
    except BrokenPipeError:
        pass

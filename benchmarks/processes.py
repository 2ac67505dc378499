"""Processes that end with their parent, and what they cost.

A measured system may hang or crash at any moment, so nothing here relies on anybody's good will:
every run has a process group of its own that is killed whole, and each process asks the kernel to
be killed when its parent dies.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, NoReturn

import psutil

ROOT = Path(__file__).resolve().parent.parent
PR_SET_PDEATHSIG = 1


def environment() -> dict[str, str]:
    """The environment of measured processes: this checkout importable, nothing buffered."""
    env = dict(os.environ)
    paths = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(paths)
    return env


def die_with(parent: int) -> None:
    """Ask to be killed when ``parent``, the process that started this one, ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we could ask
        os._exit(1)


def die_with_reader(pipe: Connection) -> None:
    """End this process as soon as nobody can read ``pipe`` any more: its reader is not our parent, but has ended."""

    def watch() -> None:
        poll = select.poll()
        poll.register(pipe, 0)  # POLLERR is reported in any case
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def allow_open_files(count: int) -> None:
    """Raise the soft limit of open files to at least ``count``, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far, user and system.

    Linux has a clock per process with nanosecond resolution; elsewhere psutil reads the kernel's
    counters, which tick every 10 ms.
    """
    if sys.platform == "linux":
        # The kernel's encoding of "scheduler clock of process pid".
        return time.clock_gettime((~pid << 3) | 2)
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


class WorkerProcess:
    """A fresh interpreter that runs a module such as ``benchmarks.worker`` and waits for the word to start."""

    def __init__(self, job: dict[str, Any], module: str) -> None:
        job = {**job, "parent": os.getpid()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_connected(self) -> None:
        """Wait for the worker's one line, which says that it is connected."""
        line = self.output.readline()
        if line != b"connected\n":
            code = self._process.wait()
            raise RuntimeError(f"a worker ended before it was connected (exit status {code})")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    @property
    def output(self) -> IO[bytes]:
        """Silent from "connected" on; its end is the worker's end."""
        assert self._process.stdout is not None
        return self._process.stdout

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Crew:
    """The worker processes of one run: started together, killed together."""

    def __init__(self, jobs: list[dict[str, Any]], fail: Callable[[str], NoReturn], module: str = "benchmarks.worker") -> None:
        self.workers: list[WorkerProcess] = []
        self._fail, self._ending = fail, False
        try:
            for job in jobs:
                self.workers.append(WorkerProcess(job, module))
            for worker in self.workers:
                worker.wait_connected()
        except BaseException:
            self.kill()
            raise

    def go(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()
        for worker in self.workers:
            worker.go()

    def _watch(self) -> None:
        """Sleep until a worker ends. The learner may wait for samples that will never come."""
        select.select([worker.output for worker in self.workers], [], [])
        if not self._ending:
            self._fail("a worker ended while it was measured")

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(worker.pid) for worker in self.workers)

    def kill(self) -> None:
        self._ending = True
        for worker in self.workers:
            worker.kill()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

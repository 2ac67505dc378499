"""Workers as processes, and what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("worker_program.py")
REAL, OURS = "evochi.v1", "echo_es.evochi.v1"


class Process:
    """One worker. `folder` has the real package; without it the worker is ours. `more`: further arguments of the program."""

    def __init__(self, port: int, *more: str, folder: Path | None = None, cores: int = 4, seconds: float = 0.0, program: Path = PROGRAM) -> None:
        module = OURS if folder is None else REAL
        path = [*([str(folder)] if folder else []), *filter(None, sys.path)]
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(program), module, str(port), str(cores), str(seconds), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def found(self, pattern: str) -> list[re.Match[str]]:
        return [match for line in list(self.lines) if (match := re.fullmatch(pattern, line))]

    def wait_for(self, pattern: str, seconds: float = 60.0) -> re.Match[str]:
        """The first line that matches; it must come."""
        wait(lambda: self.found(pattern) or self.process.poll() is not None, seconds, lambda: f"{pattern!r} in {self.lines[-30:]}")
        assert self.found(pattern), f"the worker ended without {pattern!r}: {self.lines[-30:]}"
        return self.found(pattern)[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Fleet:
    """Kills all its workers at the end."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.all: list[Process] = []

    def add(self, *more: str, **options: Any) -> Process:
        self.all.append(process := Process(self.port, *more, **options))
        return process

    def lines(self) -> list[str]:
        return [line for process in self.all for line in list(process.lines)]

    def complaints(self) -> list[str]:
        return [line for line in self.lines() if line.startswith(("BAD", "Traceback")) or "Error" in line]

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.all:
            process.kill()


def wait(condition: Callable[[], object], seconds: float = 60.0, what: Callable[[], str] = lambda: "") -> None:
    """Wait until the condition holds; it must within the time, which is generous."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"this has not happened: {what()}"
        time.sleep(0.01)

"""The real command, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

COMMAND = [sys.executable, "-m", "echoctl"]
CONFIG = """
[server]
batch_size = 4
transport = { type = "tcp", port = 0 }

[example]
obs = { shape = [3], dtype = "float32" }
next.reward = { dtype = "float32" }
"""


class Done:
    """What a command printed, and its exit code."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture
def echoctl(tmp_path: Path) -> Callable[..., Done]:
    """`echoctl("plugins", "list")`, run in an empty folder."""

    def run(*arguments: object, timeout: float = 90, **env: str) -> Done:
        command = [*COMMAND, *map(str, arguments)]
        return Done(
            subprocess.run(command, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, timeout=timeout, check=False)
        )

    return run


class Serving:
    """A running `echoctl serve`: `facts` is what it announced."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.address_file = folder / "address"
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--json", "--address-file", str(self.address_file), *arguments],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.facts = json.loads(self.process.stdout.readline() or json.dumps({"error": self.process.communicate()[1]}))
        deadline = time.monotonic() + 60
        while "error" not in self.facts and not self.address_file.exists():
            assert time.monotonic() < deadline, "no address file in 60 s"
            time.sleep(0.02)

    @property
    def address(self) -> str:
        return self.address_file.read_text().strip()

    def end(self, number: int = signal.SIGTERM) -> Done:
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return Done(subprocess.CompletedProcess([], self.process.returncode, out, err))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """`serve("--consume")`: a running server of the configuration above."""
    (tmp_path / "echo.toml").write_text(CONFIG)
    running: list[Serving] = []

    def start(*arguments: str) -> Serving:
        running.append(Serving(tmp_path, "-c", "echo.toml", *arguments))
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()

"""OpenAI's evolution strategy with worker processes, run for real until CartPole is learned, although a worker is killed and another one joins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.needs("echo-core", "echo-es", "echo-tcp")


def test_it_learns(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}  # its own token, not the user's
    command = [sys.executable, "-m", "examples.es_cartpole", "--kill-at", "3", "--join-at", "6", "--plot", str(tmp_path / "learning.png")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    best = re.search(r"best mean return of the centre: ([\d.]+)", done.stdout)
    assert best is not None and float(best[1]) >= 475, done.stdout
    complete = re.search(r"(\d+) of (\d+) epochs are complete", done.stdout)
    assert complete is not None and complete[1] == complete[2], done.stdout
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")

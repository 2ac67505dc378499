"""Asynchronous PPO, run for real: two collectors, until CartPole is learned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.needs("echo-core", "echo-ipc")


def test_it_learns(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.async_ppo", "--log-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert lines[-1]["return"] >= 450 and lines[-1]["iteration"] == len(lines)
    assert (tmp_path / f"network-{len(lines)}.npy").exists()
    assert "mean return of the last 100 episodes" in done.stdout


def test_a_target_that_is_not_reached(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.async_ppo", "--iterations", "3", "--envs", "4", "--log-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 1, done.stdout + done.stderr

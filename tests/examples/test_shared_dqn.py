"""DQN with a replay buffer in shared memory, run for real until CartPole is learned."""

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
    command = [sys.executable, "-m", "examples.shared_dqn", "--log-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert lines[-1]["best"] >= 450 and lines[-1]["iteration"] == len(lines)
    assert (tmp_path / f"network-{len(lines)}.npy").exists()

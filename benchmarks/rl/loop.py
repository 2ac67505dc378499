"""The training loop of echo-rl, run whole: how long it takes to learn sorting digits over each transport, with deaths, and CartPole.

    python -m benchmarks.rl.loop                                    # all of it, some minutes
    python -m benchmarks.rl.loop --only "shm://rl-loop eta=1"

Each run is `systems/echo_rl/examples/train_echo_rl.py` with 3 actors. The seconds are those from the start of the program, imports included, and the CPU
seconds are those of the learner and its actors, without those that were killed. Beside them is how long the case may take on two cores that nobody else
uses; on a busy machine, half of the CPU seconds is what the run would take at least.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "systems/echo_rl/examples/train_echo_rl.py"
ADDRESSES = ("tcp://127.0.0.1:0", "shm://rl-loop", "grpc://127.0.0.1:0")
CASES = {f"{address} eta={eta}": ["--transport", address, "--eta", str(eta)] for address in ADDRESSES for eta in (0, 1)}
KILLED, CARTPOLE = "tcp, two actors and the learner killed", "gym:CartPole-v1"
CASES |= {KILLED: ["rl.save_frequency=4096"], CARTPOLE: ["--task", "gym:CartPole-v1"]}
MAY_TAKE = {KILLED: 120, CARTPOLE: 60}  # seconds; the others 90


def main() -> int:
    """Run the cases, and print a line for each. Return 1 if one has not reached its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=CASES, help="run this case only; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a case is ended")
    given = parser.parse_args()
    missed = 0
    print(f"{'case':44} {'seconds':>8} {'of':>4} {'CPU s':>7} {'updates':>8} {'result':>7}  groups by age", flush=True)
    for name in given.only or CASES:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(PROGRAM), "--seed", str(given.seed), "--output-dir", folder, *CASES[name]]
            before, began = _cpu(), time.monotonic()
            code, said = _killed(command, folder, given.limit) if name == KILLED else _run(command, given.limit)
            seconds, lines = time.monotonic() - began, _lines(folder)
        missed += code != 0
        updates, results = ([line for line in lines if line["kind"] == kind] for kind in ("update", "evaluation"))
        best = results[-1].get("success_rate", results[-1]["avg_reward"]) if results else float("nan")
        figures = f"{seconds:8.1f} {MAY_TAKE.get(name, 90):4} {_cpu() - before:7.1f} {len(updates):8} {best:7.3f}"
        print(f"{name:44} {figures}  {_ages(said)}", flush=True)
    return 1 if missed else 0


def _ages(said: str) -> str:
    """What the program says at its end of the groups: how old they were, and how many were thrown away."""
    found = re.search(r"groups by age in versions (\{.*?\}), (thrown away \d+)", said)
    return "the run has not ended" if found is None else f"{found[1]}, {found[2]}"


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(command: list[str], limit: float) -> tuple[int, str]:
    """The exit status, and what was printed."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return 124, ""
    return done.returncode, done.stdout


def _killed(command: list[str], folder: str, limit: float) -> tuple[int, str]:
    """After a checkpoint kill two actors, after the next one the learner too, and run the command again with what it has saved."""
    checkpoint = Path(folder) / "checkpoint.npz"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as first:
        _until(checkpoint.exists, limit)
        for pid in _children(first.pid)[:2]:
            os.kill(pid, signal.SIGKILL)
        written = checkpoint.stat().st_mtime_ns
        _until(lambda: checkpoint.stat().st_mtime_ns > written, limit)
        first.kill()
    return _run([*command, "--resume"], limit)


def _children(pid: int) -> list[int]:
    return [int(part) for task in Path(f"/proc/{pid}/task").iterdir() for part in (task / "children").read_text().split()]


def _until(condition: Any, limit: float) -> None:
    ends = time.monotonic() + limit
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError("the run has not come so far in time")
        time.sleep(0.05)


def _lines(folder: str) -> list[dict[str, Any]]:
    file = Path(folder) / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


if __name__ == "__main__":
    sys.exit(main())

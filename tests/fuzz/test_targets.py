"""The fuzz targets over random inputs and what fuzzing them has found; `nox -s fuzz` goes on from here, guided by coverage."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `targets`

from targets import TARGETS

pytestmark = pytest.mark.needs("echo-samplers")

#: Inputs that once ended in something else than an EchoError.
FOUND = {
    "operations": (
        "aab2c5c145b797ddb9126e5cca203112105f67",  # beta is no number
        "eac4281b6f63e206f12b8ef00b1b51c9de",  # a priority below zero
        "aa70a9ce893d79ad",  # beta beyond 1
        "aa70a9ce4f09ff",
    ),
    "checkpoint": (
        "b70eee7f1a5039bef07ec2347f066ed08f",  # a manifest that is not UTF-8
        "11dde99752aacaeeec135abbf2a32d",  # the generator's state is no object
        "2f0a8a",
    ),
}


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_echo_errors(name: str) -> None:
    if name == "grpc_message":
        pytest.importorskip("echo_grpc")
    rng = random.Random(name)
    inputs = [bytes.fromhex(found) for found in FOUND.get(name, ())]
    inputs += [rng.randbytes(rng.randrange(1, 60)) for _ in range(20 if name == "checkpoint" else 500)]
    for data in inputs:
        TARGETS[name](data)


def test_the_targets_run_under_atheris(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    program = [sys.executable, str(Path(__file__).with_name("run.py"))]
    listed = subprocess.run([*program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    assert set(TARGETS) - {"grpc_message"} <= set(listed) <= set(TARGETS)
    program += ["handshake_learner", "-runs=1000", "-seed=1", str(tmp_path)]
    ran = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert any(tmp_path.iterdir()), "it found its way by coverage"

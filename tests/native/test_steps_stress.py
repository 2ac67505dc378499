"""steps_stress.cpp: the memory-model claims of items over steps, plain and under sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import echo_core

HERE = Path(__file__).resolve().parent
CXX = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
SECONDS = os.environ.get("ECHO_SOAK_SECONDS", "0.3")  # for each scenario

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler (set CXX)")


def build(program: Path, *flags: str) -> None:
    include = ["-I", np.get_include(), "-I", echo_core.get_include()]
    command = [CXX, "-std=c++20", "-Wall", *flags, *include, str(HERE / "steps_stress.cpp"), "-pthread", "-o", str(program)]
    subprocess.run(command, check=True)  # type: ignore[arg-type]


def run(program: Path, seconds: str) -> subprocess.CompletedProcess[str]:
    # ThreadSanitizer wants its shadow memory where address randomisation may have put another.
    setarch = shutil.which("setarch")
    command = [*([setarch, "-R"] if setarch else []), str(program), seconds]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["-O2"], id="plain"),
        pytest.param(["-O1", "-g", "-fsanitize=thread", "-Wno-tsan"], id="tsan"),
        pytest.param(["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"], id="asan"),
    ],
)
def test_no_forbidden_outcome(flags: list[str], tmp_path: Path) -> None:
    build(tmp_path / "stress", *flags)
    done = run(tmp_path / "stress", SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("no forbidden outcome\n")
    assert "WARNING: ThreadSanitizer" not in done.stderr


@pytest.mark.timeout(300)
def test_steps_would_be_torn_without_the_second_look(tmp_path: Path) -> None:
    build(tmp_path / "stress", "-O2", "-DECHO_VERIFY_GENERATIONS=0")
    for _ in range(5):  # writers have to be at a step just then
        done = run(tmp_path / "stress", "0.5")
        if done.returncode:
            break
    assert "FORBIDDEN: " in done.stderr, done.stdout

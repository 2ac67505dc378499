"""lane_stress.cpp: a worker's lane and both its ends, plain and under sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent / "native" / "lane_stress.cpp"
CORE = SOURCE.parents[4] / "echo_core" / "src" / "echo_core"
CXX = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
SECONDS = os.environ.get("ECHO_SOAK_SECONDS", "0.5")  # for each scenario

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler (set CXX)")


def play(tmp_path: Path, flags: list[str], seconds: str = SECONDS) -> subprocess.CompletedProcess[str]:
    program = str(tmp_path / "stress")
    command = [str(CXX), "-std=c++20", "-Wall", *flags, "-I", str(CORE), str(SOURCE), "-o", program, "-pthread"]
    subprocess.run(command, check=True)
    # ThreadSanitizer wants its shadow memory where address randomisation may have put another.
    setarch = shutil.which("setarch")
    return subprocess.run([*([setarch, "-R"] if setarch else []), program, seconds], capture_output=True, text=True, check=False)


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
    done = play(tmp_path, flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("no forbidden outcome\n")
    assert "WARNING: ThreadSanitizer" not in done.stderr


@pytest.mark.timeout(300)
def test_the_sanitizer_sees_a_barrier_that_is_missing(tmp_path: Path) -> None:
    # With samples that are shown before they are written every assertion of the program still holds on x86.
    relaxed = "-DECHO_WRITTEN_ORDER=std::memory_order_relaxed"
    done = play(tmp_path, ["-O1", "-g", "-fsanitize=thread", "-Wno-tsan", relaxed], seconds="0.1")
    assert "data race" in done.stderr
    assert done.returncode != 0

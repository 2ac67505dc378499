"""The claims of the store's native code, plain and under sanitizers: ring_stress.cpp, and shared_stress.cpp for other processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CXX = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
SECONDS = os.environ.get("ECHO_SOAK_SECONDS", "1")  # for each scenario

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler (set CXX)")


def build(program: Path, *flags: str, source: str = "ring_stress.cpp") -> None:
    command = [CXX, "-std=c++20", "-Wall", *flags, str(HERE / source), "-pthread"]
    subprocess.run([*command, "-o", str(program)], check=True)  # type: ignore[list-item]


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # ThreadSanitizer wants its shadow memory where address randomisation may have put another.
    setarch = shutil.which("setarch")
    command = [*([setarch, "-R"] if setarch else []), str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


FLAGS = pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["-O2"], id="plain"),
        pytest.param(["-O1", "-g", "-fsanitize=thread", "-Wno-tsan"], id="tsan"),
        pytest.param(
            ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"], id="asan"
        ),
    ],
)


@pytest.mark.timeout(900)
@FLAGS
def test_no_forbidden_outcome(flags: list[str], tmp_path: Path) -> None:
    build(tmp_path / "stress", *flags)
    done = run(tmp_path / "stress", SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("no forbidden outcome\n")
    assert "WARNING: ThreadSanitizer" not in done.stderr


@pytest.mark.timeout(900)
@FLAGS
def test_writers_of_other_processes_as_threads(flags: list[str], tmp_path: Path) -> None:
    build(tmp_path / "stress", *flags, source="shared_stress.cpp")
    done = run(tmp_path / "stress", "threads", SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("no forbidden outcome\n")
    assert "WARNING: ThreadSanitizer" not in done.stderr


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", ["", "-fsanitize=address"], ids=["plain", "asan"])
def test_writers_that_are_killed_and_stopped(sanitizer: str, tmp_path: Path) -> None:
    build(tmp_path / "stress", "-O1", "-g", *filter(None, [sanitizer]), source="shared_stress.cpp")
    done = run(tmp_path / "stress", "processes", SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("no forbidden outcome\n")


@pytest.mark.timeout(300)
def test_the_sanitizer_sees_a_barrier_that_is_missing(tmp_path: Path) -> None:
    # With a commit that publishes nothing every assertion of the program still holds on x86.
    relaxed = "-DECHO_COMMIT_ORDER=std::memory_order_relaxed"
    build(tmp_path / "stress", "-O1", "-g", "-fsanitize=thread", relaxed)
    done = run(tmp_path / "stress", "0.1")
    assert "data race" in done.stderr
    assert done.returncode != 0

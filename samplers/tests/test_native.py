"""Runs rows_stress.cpp, which tests the native samplers without Python, plain and under sanitizers. Run as a program, it measures them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import echo_core

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "src" / "echo_samplers"
CXX = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
SECONDS = os.environ.get("ECHO_SOAK_SECONDS", "0.2")

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler (set CXX)")


def build(source: str, program: Path, *flags: str) -> None:
    folders = [SOURCES, echo_core.get_include(), np.get_include(), HERE / "native"]
    command = [CXX, "-std=c++20", "-Wall", "-Wextra", "-Wno-psabi", "-ffp-contract=off", *flags, *(f"-I{folder}" for folder in folders)]
    subprocess.run([*command, str(HERE / "native" / source), "-o", str(program)], check=True)  # type: ignore[list-item]


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["-O2"], id="plain"),
        pytest.param(["-O1", "-g", "-D_GLIBCXX_ASSERTIONS", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"], id="asan"),
    ],
)
def test_no_forbidden_outcome(flags: list[str], tmp_path: Path) -> None:
    build("rows_stress.cpp", tmp_path / "stress", *flags)
    done = subprocess.run([str(tmp_path / "stress"), SECONDS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "no forbidden outcome\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        build("rows_bench.cpp", Path(folder) / "bench", "-O2", "-fno-math-errno")
        subprocess.run([str(Path(folder) / "bench"), *(sys.argv[1:] or ["1000000", "10000000"])], check=True)

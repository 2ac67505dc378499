"""worker_stress.cpp: the worker's engine and a line that breaks all the time, under sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent / "native" / "worker_stress.cpp"
CXX = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
SECONDS = os.environ.get("ECHO_SOAK_SECONDS", "0.7")  # for each size of sample


@pytest.mark.skipif(CXX is None, reason="no C++ compiler (set CXX)")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"], ids=["tsan", "asan"])
def test_no_forbidden_outcome(sanitizers: str, tmp_path: Path) -> None:
    program = str(tmp_path / "stress")
    flags = ["-std=c++20", "-O1", "-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    subprocess.run([str(CXX), *flags, str(SOURCE), "-o", program, "-pthread"], check=True)
    # ThreadSanitizer wants its shadow memory where address randomisation may have put another.
    setarch = shutil.which("setarch")
    command = [*([setarch, "-R"] if setarch else []), program, SECONDS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("no forbidden outcome\n")
    assert "WARNING: ThreadSanitizer" not in done.stderr

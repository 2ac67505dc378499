"""Compiles stress programs of native code, plain and under sanitizers, runs them and checks their results.

A program gets the seconds for each scenario as its argument. It prints "FORBIDDEN: ..." and fails if a forbidden outcome happened;
otherwise it ends with "no forbidden outcome".

    @stress.FLAGS
    def test_no_forbidden_outcome(flags, tmp_path):
        stress.clean(stress.play(SOURCE, tmp_path, *flags, arguments=["0.5"]))
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import echo_core

__all__ = ["FLAGS", "build", "clean", "play", "run", "seconds"]

CXX = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")

needs_compiler = pytest.mark.skipif(CXX is None, reason="no C++ compiler (set CXX)")

PLAIN = ["-O2"]
# GCC warns that ThreadSanitizer does not support fences; the accesses that they order are atomic in these builds.
TSAN = ["-O1", "-g", "-fsanitize=thread", "-Wno-tsan"]
# `./dev asan` adds UBSan, which doubles the time to compile.
ASAN = ["-O1", "-g1", "-fsanitize=address"]

FLAGS = pytest.mark.parametrize("flags", [PLAIN, TSAN, ASAN], ids=["plain", "tsan", "asan"])


def seconds(default: float) -> str:
    """How long each scenario takes: ECHO_SOAK_SECONDS if it is set, otherwise `default`."""
    return os.environ.get("ECHO_SOAK_SECONDS", str(default))


def build(source: Path, program: Path, *flags: str) -> None:
    """Compile a program with the headers of echo_core and numpy on the include path."""
    headers = echo_core.get_include()
    include = ["-I", np.get_include(), "-I", headers, "-I", str(Path(headers).parent)]
    command = [str(CXX), "-std=c++20", "-Wall", *flags, *include, str(source), "-o", str(program), "-pthread"]
    subprocess.run(command, check=True)


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # ThreadSanitizer needs its shadow memory at addresses that address randomisation may have used for other memory.
    setarch = shutil.which("setarch")
    command = [*([setarch, "-R"] if setarch else []), str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def play(source: Path, folder: Path, *flags: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """`build` the program in `folder` and run it."""
    build(source, folder / source.stem, *flags)
    return run(folder / source.stem, *arguments)


def clean(done: subprocess.CompletedProcess[str]) -> None:
    """Fail the test if the program met a forbidden outcome or its sanitizer reported anything."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("no forbidden outcome\n")
    assert "WARNING: ThreadSanitizer" not in done.stderr

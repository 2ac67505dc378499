"""A driver of CUDA without a GPU, compiled from driver.c. Makes `devices` importable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_core.spec import cuda

sys.path.insert(0, str(Path(__file__).resolve().parent))

from devices import Gpu

CC = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")


@pytest.fixture(scope="session")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if CC is None:
        pytest.skip("no compiler (set CC)")
    path = tmp_path_factory.mktemp("cuda") / "libcuda_without_gpu.so"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run([CC, *flags, str(Path(__file__).parent / "driver.c"), "-o", str(path)], check=True)
    return path


@pytest.fixture
def gpu(driver_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    monkeypatch.setenv(cuda.LIBRARY, str(driver_library))
    one = Gpu(driver_library)
    one.reset()
    cuda.found.cache_clear()
    yield one
    assert one.depth() == 0, "a context was left current"
    assert one.late_unlocks() == 0, "memory was unmapped before it was unlocked"
    cuda.found.cache_clear()
    cuda.Landing._spare.clear()
    cuda.Landing._spare_bytes = 0
    one.reset()

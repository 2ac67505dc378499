"""`Server(pinned=True)`: the memory of batches is page-locked for as long as it is there."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import Gpu, OnDevice

from echo_core import Server
from echo_core.spec.cuda import CudaError, found
from echo_testing.processes import forked

EXAMPLE = {"obs": np.zeros(1000, np.float32), "reward": np.zeros((), np.float32)}

pytestmark = pytest.mark.needs("echo-samplers")


def fill(server: Server, count: int) -> None:
    for number in range(count):
        server.submit({"obs": np.full(1000, number, np.float32), "reward": float(number)})


def locked(gpu: Gpu, batch: Any) -> bool:
    return all(gpu.is_locked(leaf.ctypes.data, leaf.nbytes) for leaf in batch.values())


@pytest.mark.parametrize("context", [-1, 1])
def test_batches_of_a_stream(gpu: Gpu, context: int) -> None:
    gpu.make_current(context)
    with Server(EXAMPLE, 4, num_buffers=3, pinned=True) as server:
        fill(server, 12)
        held = []
        while len(held) < 3:
            one = server.sample(timeout=5)
            assert one is not None and locked(gpu, one.batch)
            held.append(one)
    del server, one
    gc.collect()
    assert gpu.locked_ranges() == 1 and locked(gpu, held[0].batch)  # batches outlive their server
    gpu.make_current(-1)
    held.clear()
    gc.collect()
    assert gpu.locked_ranges() == 0


@pytest.mark.needs("echo-shm")
def test_a_store_that_workers_write_to(gpu: Gpu) -> None:
    with Server(EXAMPLE, 4, f"shm://cuda-{os.getpid()}", pinned=True, token="long-enough-for-this-test") as server:
        fill(server, 4)
        one = server.sample(timeout=5)
        assert one is not None and locked(gpu, one.batch)
    del server, one
    gc.collect()
    assert gpu.locked_ranges() == 0


def test_batches_of_replay_tables(gpu: Gpu) -> None:
    with Server(EXAMPLE, 4, sampler="uniform", capacity=100, pinned=True) as server:
        fill(server, 20)
        held = [server.sample(timeout=5) for _ in range(8)]
        assert all(one is not None and locked(gpu, one.batch) for one in held)
        assert gpu.locked_ranges() == 8
        held.clear()
        assert gpu.locked_ranges() == 4  # some are kept for the next
    del server
    gc.collect()
    assert gpu.locked_ranges() == 0


def test_from_one_device_to_another_without_a_copy_of_the_host(gpu: Gpu) -> None:
    with Server(EXAMPLE, 2, pinned=True) as server:
        for number in range(2):
            server.submit({"obs": OnDevice(gpu, np.full(1000, number, np.float32)), "reward": 1.0})
        assert gpu.is_locked(gpu.last_target(), 4000) and gpu.locked_ranges() == 1
        one = server.sample(timeout=5)
        assert one is not None and one.batch["obs"][:, 5].tolist() == [0, 1]


def test_a_forked_child_leaves_it_to_its_parent(gpu: Gpu) -> None:
    server = Server(EXAMPLE, 4, pinned=True)

    def child() -> None:
        nonlocal server
        del server
        gc.collect()

    forked(child)
    assert gpu.locked_ranges() == 1
    del server
    gc.collect()
    assert gpu.locked_ranges() == 0


def test_what_the_driver_does_not_lock(gpu: Gpu) -> None:
    gpu.fail(b"cuMemHostRegister", 1)
    with pytest.raises(CudaError, match="cuMemHostRegister: CUDA_ERROR_INVALID_VALUE"):
        Server(EXAMPLE, 4, pinned=True)
    with pytest.raises(CudaError, match="table 'default'.*does not page-lock"):
        Server(EXAMPLE, 4, sampler="uniform", capacity=100, pinned=True)
    gpu.fail(b"", 0)


def test_without_a_driver_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ECHO_CUDA_LIBRARY", str(tmp_path / "libcuda.so.1"))
    found.cache_clear()
    with pytest.raises(CudaError, match=r"pinned=True: CUDA's driver .*libcuda\.so\.1 cannot be used: .*No such file"):
        Server(EXAMPLE, 4, pinned=True)
    found.cache_clear()


def test_a_configuration_may_ask_for_it(gpu: Gpu, tmp_path: Path) -> None:
    (tmp_path / "echo.toml").write_text("[server]\nbatch_size = 4\npinned = true\n")
    server = Server.from_config(tmp_path / "echo.toml", EXAMPLE)
    assert gpu.locked_ranges() == 1
    del server

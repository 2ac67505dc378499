"""Tests that tensors of whole batches are made without a copy."""

from __future__ import annotations

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("echo-samplers", "torch")

from torch.utils.data import DataLoader  # noqa: E402

from echo_core import EchoTimeoutError, Server, SpecError  # noqa: E402


def test_batches_are_tensors_over_the_store() -> None:
    from echo_adapters.torch import BatchDataset

    server = Server({"obs": np.zeros((2, 3), np.float32), "action": np.int64(0)}, 4)
    for i in range(3):
        server.submit_batch({"obs": np.full((4, 2, 3), i, np.float32), "action": np.arange(4)})
    loader = iter(DataLoader(BatchDataset(server, timeout=0.2), batch_size=None))
    batch = next(loader)
    assert batch["obs"].shape == (4, 2, 3) and batch["obs"].dtype == torch.float32 and batch["action"].tolist() == [0, 1, 2, 3]
    assert server.stats()["store/leases_held"] == 1
    row = batch["obs"][1]  # a view keeps the batch alive
    del batch
    assert [int(next(loader)["obs"][0, 0, 0]) for _ in range(2)] == [1, 2]
    gc.collect()
    assert row.sum() == 0
    with pytest.raises(EchoTimeoutError):
        next(loader)
    del row, loader
    gc.collect()
    assert server.stats()["store/leases_held"] == 0
    server.close()


def test_it_ends_with_the_server_and_refuses_worker_processes() -> None:
    from echo_adapters.torch import BatchDataset

    server = Server(np.zeros(2), 2)
    server.submit_batch(np.ones((2, 2)))
    server.close()
    assert len(list(BatchDataset(server))) == 1
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            BatchDataset(server, pin_memory=True)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_floats_are_tensors_of_their_own_dtype(name: str) -> None:
    types = pytest.importorskip("ml_dtypes")
    from echo_adapters.torch import BatchDataset

    server = Server({"x": np.zeros(3, getattr(types, name)), "y": np.zeros((), getattr(types, name))}, 2)
    server.submit_batch({"x": np.array([[0.5, -2, 3]] * 2, getattr(types, name)), "y": np.array([1, 0.25], getattr(types, name))})
    server.close()
    (batch,) = BatchDataset(server)
    assert batch["x"].dtype is getattr(torch, name) and batch["x"].float().tolist() == [[0.5, -2, 3]] * 2
    assert batch["y"].shape == (2,) and batch["y"].float().tolist() == [1, 0.25]


@pytest.mark.parametrize("dtype", ["U3", "M8[s]", "int4"])
def test_leaves_without_a_dtype_in_torch_are_refused_by_name(dtype: str) -> None:
    from echo_adapters.torch import BatchDataset

    kind = np.dtype(pytest.importorskip("ml_dtypes").int4 if dtype == "int4" else dtype)
    with Server({"fine": np.zeros(2), "odd": np.zeros(2, kind)}, 2) as server, pytest.raises(SpecError, match="the leaf 'odd' of"):
        BatchDataset(server)

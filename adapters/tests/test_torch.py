"""Tests that tensors of whole batches are made without a copy."""

from __future__ import annotations

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("echo-samplers", "torch")

from torch.utils.data import DataLoader  # noqa: E402

from echo_core import EchoTimeoutError, Server  # noqa: E402


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

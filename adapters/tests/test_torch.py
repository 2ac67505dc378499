"""Tests that tensors of whole batches are made without a copy."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("echo-samplers", "torch")

from torch.utils.data import DataLoader  # noqa: E402

from echo_core import Client, EchoTimeoutError, Server, Table  # noqa: E402
from echo_core.base.errors import SpecError  # noqa: E402
from echo_core.spec.spec import Spec  # noqa: E402
from echo_core.wire.weights import pack, unpack  # noqa: E402


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


NARROW = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


@pytest.mark.parametrize("name", NARROW)
def test_narrow_floats_travel_in_weights_and_samples_and_come_back(name: str) -> None:
    from echo_adapters.torch import BatchDataset, as_tensors

    dtype = getattr(torch, name)
    tensor = torch.tensor([[0.5, 1.0, 2.0], [4.0, 8.0, 16.0]]).to(dtype)
    example = {"x": tensor, "y": torch.zeros((), dtype=dtype)}
    with Server(example, 2, "tcp://127.0.0.1:0") as server, Client(server.address, example) as client:
        server.publish({"w": tensor, "t": tensor.t(), "b": 3})
        weights = client.weights(timeout=10)
        assert weights is not None
        params = as_tensors(weights.params)
        assert params["w"].dtype == dtype and params["b"] == 3
        assert params["w"].float().tolist() == tensor.float().tolist() and params["t"].float().tolist() == tensor.float().t().tolist()
        for i in range(2):
            client.send({"x": tensor, "y": tensor[i, 0]})
        batch = next(iter(BatchDataset(server, timeout=10)))
        assert batch["x"].dtype == dtype and batch["x"].float().tolist() == [tensor.float().tolist()] * 2
        assert batch["y"].float().tolist() == [0.5, 4.0]


def test_a_state_dict_of_bfloat16_comes_back() -> None:
    from echo_adapters.torch import as_tensors

    layer, other = torch.nn.Linear(3, 2).bfloat16(), torch.nn.Linear(3, 2).bfloat16()
    example = {"x": np.zeros(1)}
    with Server(example, 1, "tcp://127.0.0.1:0") as server, Client(server.address, example) as client:
        for state in (layer.state_dict(), dict(layer.named_parameters())):
            server.publish(state)
            weights = client.weights(timeout=10)
            assert weights is not None
            other.load_state_dict(as_tensors(weights.params))
            assert all(torch.equal(one, two) for one, two in zip(layer.parameters(), other.parameters()))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.ones(2, device="meta"), "meta device"),
        (lambda: torch.ones(2).to_sparse(), "to_dense"),
        (lambda: torch.ones(2, dtype=torch.complex32), "numpy cannot read"),
    ],
)
def test_tensors_that_numpy_cannot_read_are_named(make: Any, words: str) -> None:
    with pytest.raises(SpecError, match=f"leaf 'w'.*{words}"):
        pack({"w": make()}, 1)
    with pytest.raises(SpecError, match=f"leaf 'w'.*{words}"):
        Spec.from_example({"w": np.zeros(2)}).check({"w": make()})


def test_conjugated_tensors_arrive_as_they_are_seen() -> None:
    tensor = torch.tensor([1 + 2j]).conj()
    packed = pack({"w": tensor}, 1)
    assert unpack(packed.meta, packed.payload).params["w"].tolist() == [1 - 2j]


@pytest.mark.parametrize("priorities", [[1.5, 2.5], [0.5, 3.0]])
@pytest.mark.parametrize("how", ["gradient", "bfloat16", "list"])
def test_priorities_may_be_tensors(priorities: list[float], how: str) -> None:
    tensor: Any = torch.tensor(priorities, requires_grad=True)
    tensor = tensor if how == "gradient" else list(tensor) if how == "list" else tensor.bfloat16()
    example = {"x": np.float32(0)}
    table = Table("t", example, capacity=8, sampler="prioritized", seed=0)
    with Server(tables=[table], batch_size=2, transport="tcp://127.0.0.1:0") as server, Client(server.address, example) as client:
        keys = server.submit_batch({"x": np.zeros(2, np.float32)}, priorities=tensor)
        assert sorted(server.table().top(2)[1]) == pytest.approx(sorted(priorities))
        for table_ in (server.table(), client.table()):
            server.table().update_priorities(keys, np.ones(2))
            assert table_.update_priorities(torch.from_numpy(keys.astype(np.int64)), tensor) == 0
            assert sorted(server.table().top(2)[1]) == pytest.approx(sorted(priorities))
        client.table().insert({"x": np.zeros(2, np.float32)}, priorities=tensor)
        assert sorted(server.table().top(4)[1]) == pytest.approx(sorted(priorities * 2))


def test_scores_take_tensors() -> None:
    from echo_samplers.scores import td_error

    assert td_error(torch.tensor([-1.0, 2.0], requires_grad=True).bfloat16()).tolist() == [1.0, 2.0]

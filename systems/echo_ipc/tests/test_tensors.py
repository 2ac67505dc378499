"""Tensors of torch: written from and read into without copies, bfloat16 as its bits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from echo_core.base.errors import SpecError  # noqa: E402
from echo_ipc import Cell, Ring, Rows  # noqa: E402


def test_a_state_dict_comes_out_as_it_went_in() -> None:
    model, mine = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
    with Cell(model.state_dict()) as cell:
        assert cell.write(model.state_dict()) == 1
        assert cell.read_into(mine.state_dict()) == 1
        assert all(torch.equal(mine.state_dict()[name], value) for name, value in model.state_dict().items())


def test_parameters_with_gradients() -> None:
    model, mine = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
    with Cell(dict(model.named_parameters())) as cell:
        cell.write(dict(model.named_parameters()))
        cell.read_into(dict(mine.named_parameters()))
        assert torch.equal(mine.weight, model.weight) and mine.weight.requires_grad


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "int64", "uint8", "bool", "complex64"])
def test_every_dtype(dtype: str) -> None:
    tensor = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype))
    for schema in ({"w": tensor}, {"w": (tuple(tensor.shape), dtype)}, {"w": (tensor.shape, tensor.dtype)}):
        with Cell(schema) as cell:
            cell.write({"w": tensor})
            mine = torch.zeros_like(tensor)
            cell.read_into({"w": mine})
            assert torch.equal(mine, tensor)


def test_views_that_are_not_contiguous() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()
    with Cell({"w": tensor}) as cell:
        cell.write({"w": tensor})
        mine = torch.zeros(3, 4).t()
        cell.read_into({"w": mine})
        assert torch.equal(mine, tensor)


def test_a_tensor_of_another_dtype_is_refused() -> None:
    with Cell({"w": torch.zeros(3)}) as cell, pytest.raises(SpecError, match=r"'w' must be float32\[3\], but is float64\[3\]"):
        cell.write({"w": torch.zeros(3, dtype=torch.float64)})


def test_a_tensor_without_memory_is_refused() -> None:
    with Cell({"w": torch.zeros(3)}) as cell:
        cell.write({"w": torch.ones(3)})
        with pytest.raises((SpecError, NotImplementedError, RuntimeError)):
            cell.read_into({"w": torch.zeros(3, device="meta")})


def test_rings_and_rows() -> None:
    with Ring({"x": torch.zeros(5)}, 2) as ring, Rows({"x": torch.zeros(5)}, 10) as rows:
        ring.put({"x": torch.arange(5.0)})
        with ring.take(timeout=0) as slot:
            assert torch.from_numpy(slot.arrays["x"]).tolist() == [0, 1, 2, 3, 4]
        rows.add({"x": torch.ones(3, 5)})
        out = torch.zeros(4, 5)
        rows.sample(4, out={"x": out})
        assert (out == 1).all()

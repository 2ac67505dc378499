"""Tensors of torch: written from and read into without copies, bfloat16 as its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
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


def odd_tensors() -> dict[str, Any]:
    """float32 [4, 3], each in another way, and all with the values of arange."""
    plain = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    wide = torch.zeros(4, 6)
    wide[:, ::2] = plain
    return {
        "plain": plain,
        "a part of another": torch.cat([torch.zeros(1, 3), plain])[1:],
        "every second column": wide[:, ::2],
        "transposed": plain.t().contiguous().t(),
        "negated in name only": torch.complex(torch.zeros(4, 3), -plain).conj().imag,
        "negated in name only, and without gaps": torch._neg_view(-plain),
        "needs a gradient": plain.clone().requires_grad_(),
        "a parameter": torch.nn.Parameter(plain.clone()),
        "a buffer": torch.nn.Buffer(plain.clone()),
        "of a subclass": plain.as_subclass(type("Mine", (torch.Tensor,), {})),
    }


@pytest.mark.parametrize("name", odd_tensors())
def test_a_tensor_is_copied_by_its_values_however_it_lies_in_memory(name: str) -> None:
    tensor, expected = odd_tensors()[name], np.arange(12, dtype=np.float32).reshape(4, 3)
    with Cell({"x": ((4, 3), "float32")}) as cell, Rows({"x": ((3,), "float32")}, 8) as rows, Ring({"x": ((4, 3), "float32")}, 1) as ring:
        cell.write({"x": tensor})
        value, _ = cell.read()
        assert value is not None and np.array_equal(value["x"], expected)
        rows.add({"x": tensor})
        assert np.array_equal(rows.read(range(4))[0]["x"], expected)
        ring.put({"x": tensor})
        with ring.take() as slot:
            assert np.array_equal(slot.arrays["x"], expected)
        with torch.no_grad():
            tensor.zero_()
        cell.read_into({"x": tensor})
        assert np.array_equal(tensor.detach().resolve_neg().numpy(), expected)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "float8_e4m3fn", "complex64"])
def test_a_tensor_of_no_dtype_of_the_schema_is_not_copied(dtype: str) -> None:
    tensor = torch.zeros(4, 3).to(getattr(torch, dtype))
    with Cell({"x": ((4, 3), "float32")}) as cell, Rows({"x": ((3,), "float32")}, 8) as rows:
        with pytest.raises((SpecError, TypeError)):
            cell.write({"x": tensor})
        with pytest.raises((SpecError, TypeError)):
            rows.add({"x": tensor})
        assert cell.version == 0 and rows.committed == 0


def test_a_complex_tensor_is_copied_by_its_values() -> None:
    """torch notes that a tensor is conjugated and leaves its memory as it was."""
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    with Cell({"x": ((2,), "complex64")}) as cell:
        for given in (tensor, tensor.conj()):
            cell.write({"x": given})
            value, _ = cell.read()
            assert value is not None and np.array_equal(value["x"], given.resolve_conj().numpy())
            target = torch.zeros(2, dtype=torch.complex64).conj()
            cell.read_into({"x": target})
            assert torch.equal(target, given)


def test_a_traced_tensor_is_refused() -> None:
    with Cell({"x": ((3,), "float32")}) as cell:

        def write(x: Any) -> Any:
            cell.write({"x": x})
            return x

        with pytest.raises((RuntimeError, SpecError)):
            torch.func.vmap(write)(torch.zeros(4, 3))
        assert cell.version == 0

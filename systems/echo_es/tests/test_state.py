"""States as bytes: what comes back, and what damaged bytes do."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from echo_core import EchoError
from echo_es.state import pack, unpack


@dataclass
class Inner:
    weights: np.ndarray[Any, Any]
    name: str


@dataclass
class Outer:
    seed: int
    inner: Inner
    layers: list[Inner] = field(default_factory=list)
    best: Inner | None = None


def outer() -> Outer:
    return Outer(2**40 + 1, Inner(np.arange(5.0), "a"), [Inner(np.arange(3, dtype=np.int8), "b")], Inner(np.ones((2, 2)), "c"))


def test_nested_dataclasses_come_back_with_writable_arrays() -> None:
    back = unpack(pack(outer()), Outer)
    assert (back.seed, back.inner.name, back.layers[0].name, back.best.name) == (2**40 + 1, "a", "b", "c")
    assert back.layers[0].weights.dtype == np.int8
    back.inner.weights += 1
    assert back.inner.weights.tolist() == [1, 2, 3, 4, 5]
    assert unpack(pack(Outer(1, Inner(np.ones(1), "a"))), Outer).best is None


def test_equal_states_have_equal_bytes() -> None:
    assert pack(outer()) == pack(outer())


def test_another_class_is_refused_by_name() -> None:
    with pytest.raises(EchoError, match="Inner has the fields weights, name, but the state that arrived has"):
        unpack(pack(outer()), Inner)


def test_what_cannot_travel_is_refused() -> None:
    with pytest.raises(EchoError, match="thing"):
        pack({"thing": object()})


@pytest.mark.parametrize("seed", range(200))
def test_damaged_bytes_raise_an_error_of_echo(seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(pack(outer()))
    if seed % 2:
        del data[chance.randrange(len(data)) :]
    else:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    with pytest.raises(EchoError):
        unpack(bytes(data), Outer)

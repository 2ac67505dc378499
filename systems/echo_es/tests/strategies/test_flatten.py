"""Trees and vectors."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

from echo_core import SpecError
from echo_es.flatten import flatten, unflatten

Layer = namedtuple("Layer", "weight bias")


def test_there_and_back() -> None:
    tree = {"actor": [Layer(np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(3, np.float64))], "scale": 1.5, "more": (np.ones(2, np.float16),)}
    theta = flatten(tree)
    assert theta.dtype == np.float32
    assert theta.tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 1.5, 1, 1]
    back = unflatten(theta * 2, tree)
    layer = back["actor"][0]
    assert isinstance(layer, Layer) and isinstance(back["more"], tuple)
    assert layer.weight.tolist() == [[0, 2, 4], [6, 8, 10]] and layer.weight.dtype == np.float32
    assert layer.bias.dtype == np.float64 and back["more"][0].dtype == np.float16
    assert back["scale"] == 3.0
    layer.weight[:] = 9
    assert theta[1] == 1  # a copy


def test_no_leaves() -> None:
    assert flatten({}).shape == (0,)
    assert unflatten(np.empty(0), {"a": []}) == {"a": []}


def test_another_size() -> None:
    with pytest.raises(ValueError, match=r"its shape must be \(3,\), not \(4,\)"):
        unflatten(np.zeros(4), {"a": np.zeros(3)})
    with pytest.raises(ValueError, match=r"not \(1, 3\)"):
        unflatten(np.zeros((1, 3)), {"a": np.zeros(3)})


def test_a_leaf_that_cannot_be_searched() -> None:
    with pytest.raises(SpecError, match="/a/1: only floating point .* int64"):
        flatten({"a": [np.zeros(2), np.arange(3)]})

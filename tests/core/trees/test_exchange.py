"""Specs beside each other and on their way: differences, fingerprints, descriptions that may come from anybody."""

from __future__ import annotations

import collections
import json
import pickle
from typing import Any

import numpy as np
import pytest
from containers import Step
from hypothesis import given
from hypothesis import strategies as st

from echo_core.base.errors import SpecError
from echo_core.spec.dtypes import dtype_from_json, dtype_to_json
from echo_core.spec.leaf import LeafSpec
from echo_core.spec.spec import Spec

pytestmark = pytest.mark.every_python

DIFFERENT = [
    ({"obs": np.zeros(4, np.float64)}, "leaf 'obs' is float32 (4,) by us but float64 (4,) by them"),
    ({"obs": np.zeros(5, np.float32)}, "leaf 'obs' is float32 (4,) by us but float32 (5,) by them"),
    ({}, "leaf 'obs' (float32 (4,)) is declared by us but not by them"),
    ({"observation": np.zeros(4, np.float32)}, "not by them, which has 'observation' instead"),
    (
        {"obs": np.zeros(4, np.float32), "z": np.zeros(1)},
        "leaf 'z' (float64 (1,)) is declared by them but not by us",
    ),
    ({"obs": np.zeros(4, np.float32), "z": None}, "containers differ"),
]


@pytest.mark.parametrize(("example", "sentence"), DIFFERENT)
def test_difference_names_the_leaf(example: Any, sentence: str) -> None:
    ours = Spec.from_example({"obs": np.zeros(4, np.float32)})
    theirs = Spec.from_example(example)
    for spec in (theirs, Spec.from_json(theirs.to_json())):
        assert sentence in str(ours.difference(spec, "by us", "by them"))
        assert ours != spec and ours.fingerprint != spec.fingerprint


def test_difference_of_containers_and_order() -> None:
    as_list = Spec.from_example([np.zeros(1), np.zeros(1)])
    as_tuple = Spec.from_example((np.zeros(1), np.zeros(1)))
    assert "containers differ" in str(as_list.difference(as_tuple))
    ordered = Spec.from_example(collections.OrderedDict(b=np.zeros(1), a=np.zeros(1)))
    plain = Spec.from_example({"b": np.zeros(1), "a": np.zeros(1)})
    assert "use plain dicts" in str(plain.difference(ordered))


def test_the_fingerprint_is_stable() -> None:
    """Workers of one release must agree with learners of the next."""
    spec = Spec.from_example({"obs": np.zeros((2, 3), ">f4"), "done": [np.zeros((), bool)]})
    assert spec.to_json() == {
        "leaves": [
            {"path": "done/0", "shape": [], "dtype": "|b1"},
            {"path": "obs", "shape": [2, 3], "dtype": "<f4"},
        ],
        "structure": {"dict": [["done", {"list": [0]}], ["obs", 1]]},
    }
    assert spec.fingerprint == "965b3082064725647da2d62cb6b84e90fafa85fac88005f15553cc7aef211535"


def test_pickle() -> None:
    spec = Spec.from_example({"step": Step(np.zeros(3), np.zeros((), np.float32))})
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    again.check({"step": Step(np.ones(3), 0.5)})


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"leaves": 3, "structure": None},
        {"leaves": [{}], "structure": 0},
        {"leaves": [{"path": 3, "shape": [], "dtype": "<f4"}], "structure": 0},
        {"leaves": [{"path": "x", "shape": [-1], "dtype": "<f4"}], "structure": 0},
        {"leaves": [{"path": "x", "shape": [1.5], "dtype": "<f4"}], "structure": 0},
        {"leaves": [{"path": "x", "shape": [True], "dtype": "<f4"}], "structure": 0},
        {"leaves": [{"path": "x", "shape": [1 << 61] * 32, "dtype": "<f4"}], "structure": 0},
        {"leaves": [{"path": "x", "shape": [1] * 33, "dtype": "<f4"}], "structure": 0},
        {"leaves": [{"path": "x", "shape": [], "dtype": "O"}], "structure": 0},
        {"leaves": [{"path": "x", "shape": [], "dtype": "f4,f4"}], "structure": 0},
        {"leaves": [{"path": "x", "shape": [], "dtype": "__class__"}], "structure": 0},
        {"leaves": [{"path": "x", "shape": [], "dtype": "finfo"}], "structure": 0},
        {"leaves": [{"path": "x", "shape": [], "dtype": ["<f4", [2]]}], "structure": 0},
        {"leaves": [{"path": "x", "shape": [], "dtype": {"names": ["a"]}}], "structure": 0},
        {"leaves": [{"path": "x", "shape": [], "dtype": "<f4"}] * 5000, "structure": 0},
        {"leaves": [], "structure": json.loads("[" * 300 + "]" * 300)},
    ],
)
def test_from_json_trusts_nothing(value: Any) -> None:
    with pytest.raises(SpecError):
        Spec.from_json(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["<f4", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["leaves", "path", "shape", "dtype", "names", "formats", "offsets"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON)
def test_from_json_raises_nothing_else(leaves: Any, structure: Any) -> None:
    try:
        Spec.from_json({"leaves": leaves, "structure": structure})
    except SpecError:
        pass


def test_nested_record_descriptions_are_bounded() -> None:
    value: Any = "<f4"
    for _ in range(40):
        value = {"names": ["a"], "formats": [value], "offsets": [0], "itemsize": 4}
    with pytest.raises(SpecError):
        dtype_from_json(value)
    assert dtype_from_json(dtype_to_json(np.dtype("(2,3)f4"))) == np.dtype("(2,3)f4")


def test_a_spec_without_a_tree_checks_nothing() -> None:
    spec = Spec.from_json(Spec.from_example(np.zeros(2)).to_json())
    with pytest.raises(SpecError, match="from_example"):
        spec.check(np.zeros(2))


def test_leaf_spec_of_a_bare_array() -> None:
    leaf = LeafSpec("", (2,), np.dtype(np.float32))
    with pytest.raises(SpecError, match=r"^the array must be float32"):
        leaf.convert(np.zeros(2))

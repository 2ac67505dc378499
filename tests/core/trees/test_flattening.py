"""The flattener: what it finds is what numpy would find, fast path or not, in samples and batches."""

from __future__ import annotations

import collections
from typing import Any

import ml_dtypes
import numpy as np
import optree
import pytest
from containers import NS, Carry, Step, flattener
from hypothesis import given
from hypothesis import strategies as st

from echo_core.base.errors import SpecError
from echo_testing.samples import assert_same

pytestmark = pytest.mark.every_python


def expected_bytes(tree: Any, dtypes: list[np.dtype], namespace: str = "") -> bytes:
    leaves = optree.tree_leaves(tree, namespace=namespace)
    return b"".join(np.asarray(x, d).tobytes() for x, d in zip(leaves, dtypes))


PLAIN = ["?", "u1", "i4", "i8", "f2", "f4", "f8", "c8", "M8[ns]", "U3", "S2", "V3"]
DTYPES = st.sampled_from([*PLAIN, ml_dtypes.bfloat16, np.dtype([("a", "i2"), ("b", "f8")])])
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype, shape = np.dtype(draw(DTYPES)), draw(SHAPES)
    size = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind in "?bUS":
        return np.full(shape, draw(st.sampled_from([0, 1])), dtype)
    return np.ndarray(shape, dtype, bytearray(draw(st.binary(min_size=size, max_size=size))))


KEYS = st.text("abcxyz/01", max_size=3) | st.integers(-2, 2)
TREES = st.recursive(
    arrays() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3).map(collections.OrderedDict)
        | st.tuples(inner, inner).map(lambda pair: Step(*pair))
        | st.tuples(inner, inner).map(lambda pair: Carry(*pair))
    ),
    max_leaves=8,
)


@given(TREES, st.integers(0, 3))
def test_any_tree_there_and_back(tree: Any, n: int) -> None:
    flat = flattener(tree, NS)
    dtypes = [leaf.dtype for leaf in flat.specs]
    flat.check(tree)
    data = flat.tobytes(tree)
    assert data == expected_bytes(tree, dtypes, NS) and len(data) == flat.sample_bytes
    assert_same(flat.view(data), tree, NS)
    assert_same(flat.view(bytearray(data)), tree, NS)
    stacked = optree.tree_map(
        lambda x: np.stack([x] * n) if n else np.zeros((0, *x.shape), x.dtype), tree, namespace=NS
    )
    if flat.count == 0:
        with pytest.raises(SpecError):
            flat.check_batch(stacked)
        return
    assert flat.check_batch(stacked) == n
    count, batch = flat.batch_tobytes(stacked)
    assert count == n and batch == expected_bytes(stacked, dtypes, NS)
    assert_same(flat.view(batch, n), stacked, NS)


@given(TREES)
def test_any_tree_but_with_other_memory(tree: Any) -> None:
    """Byte order, strides, Fortran order, misalignment, read-only: the values are what counts."""

    def spread(x: np.ndarray) -> np.ndarray:
        x = x.astype(x.dtype.newbyteorder("S")) if x.dtype.kind in "iufcmMU" else x
        wide = np.zeros((*x.shape, 2), x.dtype)
        wide[..., 1] = x
        return wide[..., 1]

    def shift(x: np.ndarray) -> np.ndarray:
        raw = np.zeros(x.nbytes + 1, np.uint8)
        moved = np.ndarray(x.shape, x.dtype, raw, 1) if x.nbytes else x.copy()
        moved[...] = x
        moved.flags.writeable = False
        return moved

    flat = flattener(tree, NS)
    data = flat.tobytes(tree)
    for change in (
        spread,
        shift,
        lambda x: np.array(x, order="F"),
        lambda x: x.view(type("Sub", (np.ndarray,), {})),
    ):
        other = optree.tree_map(change, tree, namespace=NS)
        assert flat.tobytes(other) == data
        for array in flat.flatten(other):
            assert type(array) is np.ndarray and array.flags.c_contiguous and array.dtype.isnative


def test_flatten_returns_the_arrays_themselves() -> None:
    example = {"b": np.zeros(2), "a": [np.zeros(3, np.int8)]}
    flat = flattener(example)
    a, b = flat.flatten(example)
    assert a is example["a"][0] and b is example["b"]
    assert flat.unflatten([1, 2]) == {"b": 2, "a": [1]}


def test_batches_keep_the_order_of_keys() -> None:
    example = {"z": np.zeros(1), "a": {"y": np.zeros(1), "b": np.zeros(1)}, "m": np.zeros(1)}
    batch = flattener(example).view(bytearray(4 * 8 * 3), 3)
    assert list(batch) == ["z", "a", "m"] and list(batch["a"]) == ["y", "b"]
    assert batch["a"] is not flattener(example).view(bytearray(96), 3)["a"]


def test_keys_in_another_order_or_not_interned() -> None:
    example = {f"key-{i}": np.full(2, i, np.int16) for i in range(20)}
    flat = flattener(example)
    data = flat.tobytes(example)
    assert flat.tobytes(dict(reversed(example.items()))) == data
    assert flat.tobytes({"".join(list(key)): value for key, value in example.items()}) == data
    almost = dict(example)
    almost["key-x"] = almost.pop("key-7")
    with pytest.raises(SpecError, match="'key-7' is missing"):
        flat.check(almost)


def test_dicts_of_other_kinds_are_dicts() -> None:
    flat = flattener({"a": np.zeros(1), "b": np.ones(1)})
    data = flat.tobytes({"a": np.zeros(1), "b": np.ones(1)})
    assert flat.tobytes(collections.OrderedDict(b=np.ones(1), a=np.zeros(1))) == data
    assert flat.tobytes(collections.defaultdict(list, b=np.ones(1), a=np.zeros(1))) == data


def test_arrays_without_bytes() -> None:
    example = {"none": np.zeros((3, 0), np.float32), "void": np.zeros(2, "V0")}
    flat = flattener(example)
    flat.check(example)
    assert flat.tobytes(example) == b""
    batch = flat.view(b"", 5)
    assert batch["none"].shape == (5, 3, 0) and batch["void"].shape == (5, 2)
    assert flat.batch_tobytes(batch) == (5, b"")
    assert flattener({}).tobytes({}) == b"" and flattener({}).view(b"") == {}


# --- batches --------------------------------------------------------------------------------------


def test_batches() -> None:
    flat = flattener({"obs": np.zeros(4, np.float32), "reward": np.zeros((), np.float32)})
    good = {"obs": np.ones((3, 4), np.float32), "reward": np.ones(3, np.float32)}
    assert flat.check_batch(good) == 3
    assert flat.check_batch({"obs": good["obs"][::-1], "reward": good["reward"].astype(">f4")}) == 3
    for change, message in [
        ({"reward": np.ones(2, np.float32)}, r"leaf 'reward' must have shape \(3,\), got \(2,\)"),
        ({"reward": np.ones((), np.float32)}, r"leaf 'reward' must have shape \(3,\), got \(\)"),
        ({"reward": np.ones(3)}, "leaf 'reward' must be float32, got float64"),
        ({"reward": 1.0}, "leaf 'reward' must be an array"),
        ({"obs": np.ones(4, np.float32)}, r"leaf 'obs' must have shape \(N, 4\), got \(4,\)"),
        ({"obs": np.ones((3, 5), np.float32)}, r"leaf 'obs' must have shape \(.*, 4\)"),
        ({"extra": 1}, "'extra' is not in the example"),
    ]:
        with pytest.raises(SpecError, match=message):
            flat.check_batch({**good, **change})


def test_a_batch_is_no_sample_and_a_sample_no_batch() -> None:
    flat = flattener({"x": np.zeros(3)})
    with pytest.raises(SpecError, match="send_batch"):
        flat.check({"x": np.zeros((2, 3))})
    with pytest.raises(SpecError, match="stack"):
        flat.check_batch({"x": np.zeros(3)})


# --- lifetimes ------------------------------------------------------------------------------------


def test_more_leaves_than_fit_on_a_stack() -> None:
    example = {f"{i:03}": [np.full((), i, np.int32)] for i in range(300)}
    flat = flattener(example)
    assert np.frombuffer(flat.tobytes(example), np.int32).tolist() == list(range(300))
    batch = flat.view(bytearray(300 * 4 * 2), 2)
    assert len(batch) == 300 and batch["299"][0].shape == (2,)

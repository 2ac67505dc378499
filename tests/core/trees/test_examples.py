"""Examples: what one fixes, and what cannot be one."""

from __future__ import annotations

import collections
import json
from typing import Any

import ml_dtypes
import numpy as np
import optree
import pytest
from containers import Carry, Step, refusal

from echo_core.base.errors import SpecError
from echo_core.spec.spec import MAX_LEAVES, MAX_NDIM, Spec
from echo_core.spec.structure import MAX_DEPTH, segment

pytestmark = pytest.mark.every_python

ATARI = {
    "obs": {"pixels": np.zeros((8, 8, 4), np.uint8), "ram": np.zeros(128, np.uint8)},
    "action": np.zeros((), np.int64),
    "reward": np.zeros((), np.float32),
}

DTYPES = [
    *("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", "G"),
    *("M8[ns]", "M8[D]", "M8", "m8[25us]", "U7", "S3", "V5", "V0"),
    *(">f4", ">i2", ">c16", ">U3", ">M8[ms]"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4),
    [("position", "<f4", (3,)), ("id", ">u8"), ("half", ml_dtypes.bfloat16)],
    [("inner", [("a", "i1"), ("b", "M8[s]")], (2, 2)), ("name", "U4")],
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    {"names": ["low", "all"], "formats": ["u2", "u4"], "offsets": [0, 0], "itemsize": 8},
    [],
]


def test_what_an_example_fixes() -> None:
    spec = Spec.from_example(ATARI)
    assert [(leaf.path, leaf.shape, leaf.dtype) for leaf in spec.leaves] == [
        ("action", (), np.int64),
        ("obs/pixels", (8, 8, 4), np.uint8),
        ("obs/ram", (128,), np.uint8),
        ("reward", (), np.float32),
    ]
    assert [leaf.nbytes for leaf in spec.leaves] == [8, 256, 128, 4]
    assert spec.sample_bytes == 396
    assert "obs/pixels: uint8 (8, 8, 4)" in repr(spec)
    spec.check(ATARI)
    assert Spec.from_example(spec) is spec


def test_containers() -> None:
    @optree.dataclasses.dataclass(namespace="")
    class Everywhere:
        x: Any

    tree = {
        "list": [np.zeros(1), (np.zeros(2), None)],
        "step": Step(np.zeros(3), {"b": np.zeros(1), "a": np.zeros(2)}),
        "ordered": collections.OrderedDict(z=np.zeros(1), y=np.zeros(1)),
        "deque": collections.deque([np.zeros(4)]),
        "carry": Carry(np.zeros(5), np.zeros(6)),
        "global": Everywhere(np.zeros(7)),
        3: np.zeros(8),
    }
    spec = Spec.from_example(tree, namespace="echo-test")
    assert {leaf.path for leaf in spec.leaves} == {
        *("list/0", "list/1/0", "step/obs", "step/reward/a", "step/reward/b", "ordered/z"),
        *("ordered/y", "deque/0", "carry/hidden", "carry/cell", "global/x", "3"),
    }
    spec.check(tree)
    json.dumps(spec.to_json())
    wrong = dict(tree, carry=Carry(np.zeros(5), np.zeros(9)))
    assert "carry/cell" in refusal(wrong, spec)
    assert "must be a Carry" in refusal(dict(tree, carry=(np.zeros(5), np.zeros(6))), spec)
    assert "must be a Step" in refusal(dict(tree, step=(np.zeros(3), {})), spec)


def test_paths_are_unambiguous() -> None:
    tree = {"a/b": np.zeros(1), "a": {"b": np.zeros(1)}, "": np.zeros(1), "0": np.zeros(1)}
    tree["a"]["0"] = np.zeros(1)
    paths = [leaf.path for leaf in Spec.from_example(tree).leaves]
    assert len(set(paths)) == len(paths) == 5
    assert segment(0) == "0" and segment("0") == "['0']" and segment((1, 2)) == "[(1, 2)]"
    assert [leaf.path for leaf in Spec.from_example(np.zeros(3)).leaves] == [""]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_fixed_size_dtype(dtype: Any) -> None:
    example = {"x": np.zeros((2, 3), dtype)}
    spec = Spec.from_example(example)
    (leaf,) = spec.leaves
    assert leaf.dtype == np.dtype(dtype).newbyteorder("=")
    assert leaf.dtype.isnative
    spec.check(example)
    spec.check({"x": np.zeros((2, 3), leaf.dtype)})
    over_the_wire = json.loads(json.dumps(spec.to_json()))
    again = Spec.from_json(over_the_wire)
    assert again == spec and again.leaves == spec.leaves and again.difference(spec) is None
    assert again.sample_bytes == spec.sample_bytes


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * MAX_NDIM])
def test_every_shape(shape: tuple[int, ...]) -> None:
    spec = Spec.from_example({"x": np.zeros(shape, np.float32)})
    assert spec.leaves[0].shape == shape
    spec.check({"x": np.ones(shape, np.float32)})


@pytest.mark.parametrize("example", [{}, [], (), None, {"a": [], "b": None}])
def test_no_leaves_at_all(example: Any) -> None:
    spec = Spec.from_example(example)
    assert spec.leaves == () and spec.sample_bytes == 0 and len(spec.fingerprint) == 64
    spec.check(example)
    with pytest.raises(SpecError):
        spec.check({"x": np.zeros(1)})


def test_array_likes_and_numpy_scalars_as_example() -> None:
    class Tensor:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.arange(3, dtype=np.float32)

    spec = Spec.from_example({"t": Tensor(), "s": np.float16(1), "m": memoryview(b"abc")})
    assert [(leaf.dtype, leaf.shape) for leaf in spec.leaves] == [
        (np.uint8, (3,)),
        (np.float16, ()),
        (np.float32, (3,)),
    ]
    spec.check({"t": Tensor(), "s": np.float16(2), "m": bytearray(b"xyz")})


@pytest.mark.parametrize("scalar", [1, 1.0, True, 1j, "text", b"bytes"])
def test_python_scalars_in_an_example_are_refused(scalar: Any) -> None:
    with pytest.raises(SpecError, match=r"leaf 'a/1' of the example is the Python .* instance np"):
        Spec.from_example({"a": [np.zeros(1), scalar]})


@pytest.mark.parametrize(
    "value",
    [
        np.array([None]),
        np.array([(1, None)], dtype=[("a", "i4"), ("b", "O")]),
        np.array([((None,),)], dtype=[("a", [("deep", "O")])]),
        np.array(["text"], dtype=np.dtypes.StringDType()),
        object(),
        np.zeros(1, [(("title", "name"), "f4")]),
    ],
)
def test_what_has_no_fixed_size_is_refused_by_name(value: Any) -> None:
    with pytest.raises(SpecError, match="leaf 'deep/bad' of the example"):
        Spec.from_example({"deep": {"bad": value, "good": np.zeros(2)}})


def test_unregistered_class_says_how_to_register_it() -> None:
    with pytest.raises(SpecError, match=r"'c' .* Carry.*optree\.register_pytree_node"):
        Spec.from_example({"c": Carry(np.zeros(1), np.zeros(1))})


def test_limits() -> None:
    with pytest.raises(SpecError, match="leaves"):
        Spec.from_example([np.zeros(1)] * (MAX_LEAVES + 1))
    deep: Any = np.zeros(1)
    for _ in range(MAX_DEPTH):
        deep = [deep]
    Spec.from_example(deep)
    with pytest.raises(SpecError, match="nested"):
        Spec.from_example([deep])
    with pytest.raises(SpecError, match="axes"):
        Spec.from_example({"x": np.zeros((1,) * (MAX_NDIM + 1))})
    huge = np.broadcast_to(np.zeros(1), (1 << 44,))
    with pytest.raises(SpecError, match="bytes"):
        Spec.from_example({"x": huge})

"""Spec: what an example fixes, what a sample may be, and how two specs differ."""

from __future__ import annotations

import collections
import json
import pickle
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import optree
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_core.dtypes import dtype_from_json, dtype_to_json
from echo_core.errors import SpecError
from echo_core.leaf import LeafSpec
from echo_core.spec import MAX_LEAVES, MAX_NDIM, Spec
from echo_core.structure import MAX_DEPTH, segment


class Step(NamedTuple):
    obs: Any
    reward: Any


@optree.dataclasses.dataclass(namespace="echo-test")
class Carry:
    hidden: Any
    cell: Any


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


def refusal(sample: Any, spec: Spec) -> str:
    with pytest.raises(SpecError) as caught:
        spec.check(sample)
    return str(caught.value)


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


WRONG = [
    ({"obs": np.zeros(4, np.int32)}, "leaf 'obs' must be float32, got int32; convert"),
    ({"obs": np.zeros(4, np.float64)}, "leaf 'obs' must be float32, got float64; convert"),
    ({"obs": np.zeros(4, np.uint32)}, "leaf 'obs' must be float32, got uint32"),
    ({"obs": np.zeros(4, ">i4")}, "leaf 'obs' must be float32, got int32"),
    (
        {"obs": np.zeros((2, 2), np.float32)},
        r"leaf 'obs' must have shape \(4,\), got \(2, 2\); .*reshape",
    ),
    ({"obs": np.zeros((4, 1), np.float32)}, r"must have shape \(4,\), got \(4, 1\)"),
    ({"obs": np.zeros((1, 4), np.float32)}, r"got \(1, 4\); .*send_batch"),
    ({"obs": np.zeros(3, np.float32)}, r"must have shape \(4,\), got \(3,\)"),
    ({"obs": np.zeros((), np.float32)}, r"must have shape \(4,\), got \(\)"),
    ({"obs": np.zeros(2, np.float64)}, "leaf 'obs'"),
    ({"obs": np.zeros(16, np.uint8)}, "leaf 'obs'"),
    ({"obs": np.float32(1)}, r"must have shape \(4,\), got \(\)"),
    ({"obs": 1.0}, "leaf 'obs' must be an array .* Python float 1.0"),
    ({"obs": [0.0] * 4}, "leaf 'obs' must be an array .* got a list"),
    ({"obs": None}, "leaf 'obs' must be an array .* got a NoneType"),
    ({"obs": np.array([None] * 4)}, "leaf 'obs' .* Python objects"),
    ({"obs": object()}, "leaf 'obs' .* Python objects"),
    ({"obs": np.ma.masked_array(np.zeros(4, np.float32), mask=True)}, "leaf 'obs' .* masked"),
    ({"obs": {"x": np.zeros(4, np.float32)}}, "leaf 'obs' must be an array .* got a dict"),
    ({"reward": np.float64(1)}, "leaf 'reward' must be float32, got float64"),
    ({"reward": np.zeros(1, np.float32)}, r"leaf 'reward' must have shape \(\), got \(1,\)"),
    ({"flags": [np.True_, np.int8(0)]}, "leaf 'flags/1' must be bool, got int8"),
    ({"flags": [np.True_]}, "'flags' must have 2 elements, got 1"),
    ({"flags": (np.True_, np.True_)}, "'flags' must be a list, got a tuple"),
    ({"extra": np.zeros(1)}, "'extra' is not in the example; remove it"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_spec_accepts_nothing_else(change: dict[str, Any], message: str) -> None:
    example = {
        "obs": np.zeros(4, np.float32),
        "reward": np.zeros((), np.float32),
        "flags": [np.zeros((), np.bool_), np.zeros((), np.bool_)],
    }
    spec = Spec.from_example(example)
    with pytest.raises(SpecError, match=message):
        spec.check({**example, **change})


def test_wrong_keys_name_the_near_miss() -> None:
    example = {"obs": np.zeros(4), "reward": np.zeros(1), "meta": {"seed": np.zeros(1)}}
    spec = Spec.from_example(example)
    assert "'reward' is missing" in refusal({k: example[k] for k in ("obs", "meta")}, spec)
    renamed = {"obs": np.zeros(4), "rewards": np.zeros(1), "meta": example["meta"]}
    assert "did you mean 'reward'?" in refusal(renamed, spec)
    assert "'meta': 'seed' is missing" in refusal({**example, "meta": {}}, spec)
    assert "'meta' must be a dict" in refusal({**example, "meta": [np.zeros(1)]}, spec)
    assert "must be a dict" in refusal([1, 2, 3], spec)
    assert "'x' is None in the example" in refusal({"x": 1}, Spec.from_example({"x": None}))


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        (
            "f4",
            [0.1, 1e38, float("inf"), float("nan"), 3, -(2**24)],
            [1e39, 2**24 + 1, True, 1j, "1"],
        ),
        ("f8", [0.1, 2**53, -(2**60), 10**15], [2**53 + 1, 10**400, True, b"1"]),
        ("f2", [1e-9, 65504.0, 2048], [65536.0, 2049, True]),
        (ml_dtypes.bfloat16, [0.5, 1e38, 256, float("inf")], [257, 1e39, False]),
        (ml_dtypes.float8_e4m3fn, [0.5, 448.0], [1000.0, float("inf")]),
        ("i4", [0, 2**31 - 1, -(2**31)], [2**31, -(2**31) - 1, 1.0, True]),
        ("i8", [2**63 - 1, -(2**63)], [2**63, 0.5, False]),
        ("u1", [0, 255], [-1, 256, 1.0, True]),
        ("u8", [2**64 - 1], [2**64, -1]),
        (ml_dtypes.int4, [7, -8], [8, -9]),
        ("?", [True, False], [1, 0, 0.0, "True"]),
        ("c8", [1, 0.5, 1j, complex("inf")], [1e39, 1e39j, True]),
        ("c16", [1, 0.5, 1j], [True, "1"]),
        ("U3", ["", "abc"], ["abcd", b"abc", 1]),
        ("S3", [b"", b"abc"], [b"abcd", "abc", 1]),
        ("M8[s]", [], [0, 1.0, "2020-01-01"]),
        ([("a", "i4")], [], [1, 1.0]),
    ],
    ids=str,
)
def test_python_scalars_in_samples_are_weak(dtype: Any, good: list[Any], bad: list[Any]) -> None:
    spec = Spec.from_example({"x": np.zeros((), dtype)})
    for value in good:
        (array,) = spec.flattener.flatten({"x": value})
        assert array.dtype == dtype and array.shape == ()
        np.testing.assert_equal(array, np.array(value, dtype))
    for value in bad:
        assert "leaf 'x'" in refusal({"x": value}, spec), value


def test_numpy_scalars_are_strong() -> None:
    spec = Spec.from_example({"x": np.zeros((), np.float32)})
    spec.check({"x": np.float32(1)})
    for value in (np.float64(1), np.int32(1), np.float16(1), np.bool_(True)):
        assert "leaf 'x' must be float32" in refusal({"x": value}, spec)


def test_narrower_strings_fit() -> None:
    spec = Spec.from_example({"text": np.zeros(2, "U5"), "raw": np.zeros((), "S4")})
    spec.check({"text": np.array(["a", "bcd"]), "raw": np.bytes_(b"abcd")})
    assert "shorten" in refusal({"text": np.array(["a", "bcdefg"]), "raw": b""}, spec)
    assert "leaf 'text'" in refusal({"text": np.zeros(2, "S5"), "raw": b""}, spec)


def test_records_match_by_fields() -> None:
    spec = Spec.from_example({"x": np.rec.array([(1, 2.0)], dtype=[("a", ">i4"), ("b", "f8")])})
    assert spec.leaves[0].dtype.type is np.void
    spec.check({"x": np.zeros(1, [("a", "<i4"), ("b", "f8")])})
    for other in ([("a", "i4"), ("c", "f8")], [("a", "f4"), ("b", "f8")], "V12"):
        assert "leaf 'x'" in refusal({"x": np.zeros(1, other)}, spec)


def test_datetime_units_differ() -> None:
    spec = Spec.from_example({"t": np.zeros(1, "M8[ns]")})
    assert "datetime64[us]" in refusal({"t": np.zeros(1, "M8[us]")}, spec)
    assert "timedelta64[ns]" in refusal({"t": np.zeros(1, "m8[ns]")}, spec)


# --- two specs ------------------------------------------------------------------------------------


def test_the_order_in_which_keys_are_written_does_not_matter() -> None:
    one = Spec.from_example({"a": np.zeros(1), "b": np.zeros(2)})
    two = Spec.from_example({"b": np.zeros(2), "a": np.zeros(1)})
    assert one == two and hash(one) == hash(two) and one.difference(two) is None
    ordered = collections.OrderedDict(a=np.zeros(1), b=np.zeros(2))
    assert Spec.from_example(ordered) == one


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

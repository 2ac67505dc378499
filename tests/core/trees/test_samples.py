"""Samples against a spec: what fits, and how what does not is named."""

from __future__ import annotations

import collections
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from containers import refusal

from echo_core.base.errors import SpecError
from echo_core.spec.spec import Spec

pytestmark = pytest.mark.every_python

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
    ({"obs": object()}, "leaf 'obs' is of type object, which is no array"),
    ({"obs": np.ma.masked_array(np.zeros(4, np.float32), mask=True)}, "leaf 'obs' .* masked"),
    ({"obs": {"x": np.zeros(4, np.float32)}}, "leaf 'obs' must be an array .* got a dict"),
    ({"reward": np.float64(1e39)}, r"leaf 'reward' is float32 and cannot hold np.float64\(1e\+39\) unchanged"),
    ({"reward": np.zeros((), np.float64)}, "leaf 'reward' must be float32, got float64"),
    ({"reward": np.longdouble(1)}, "leaf 'reward' must be float32, got (longdouble|float128)"),
    ({"reward": np.zeros(1, np.float32)}, r"leaf 'reward' must have shape \(\), got \(1,\)"),
    ({"flags": [np.True_, np.int8(0)]}, r"leaf 'flags/1' is bool and cannot hold np.int8\(0\) unchanged"),
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


NUMBERS = [0.1, 1e-50, 1e38, 1e39, -1e300, float("inf"), float("nan"), 1.0, 2.5, 0, 3, -1, 255, 2**24 + 1, 2**31, 2**62 + 1, True, False, 1j, 0.1 + 2j]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i4", "i8", "u1", "u8", "?", "c8", "c16", ml_dtypes.bfloat16, ml_dtypes.int4], ids=str)
def test_a_numpy_scalar_is_taken_exactly_where_the_python_scalar_of_its_value_is(dtype: Any) -> None:
    spec = Spec.from_example({"x": np.zeros((), dtype)})
    numpys = {float: [np.float64, np.float32, np.float16], int: [np.int64, np.int32, np.uint64, np.int8], bool: [np.bool_]}
    numpys[complex] = [np.complex128, np.complex64]
    for python in NUMBERS:
        for kind in numpys[type(python)]:
            try:
                with np.errstate(all="ignore"):
                    value = kind(python)
            except OverflowError:
                continue
            if value.dtype == spec.leaves[0].dtype:
                spec.check({"x": value})
                continue
            try:
                (expected,) = spec.flattener.flatten({"x": value.item()})
            except SpecError:
                assert "leaf 'x'" in refusal({"x": value}, spec), (python, kind)
            else:
                assert spec.flattener.flatten({"x": value})[0].tobytes() == expected.tobytes(), (python, kind)


def test_a_numpy_scalar_fits_no_other_shape() -> None:
    spec = Spec.from_example({"x": np.zeros(1, np.float32)})
    assert "must have shape (1,), got ()" in refusal({"x": np.float64(1)}, spec)


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

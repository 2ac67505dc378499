"""The flattener: what it finds is what numpy would find, fast path or not, and nothing leaks."""

from __future__ import annotations

import collections
import gc
import sys
import threading
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import optree
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_core.errors import SpecError
from echo_core.pytree import Flattener
from echo_core.rows import RowWriter
from echo_core.spec import Spec


class Step(NamedTuple):
    obs: Any
    reward: Any


@optree.dataclasses.dataclass(namespace="echo-test")
class Carry:
    hidden: Any
    cell: Any


def flattener(example: Any, namespace: str = "") -> Flattener:
    return Spec.from_example(example, namespace=namespace).flattener


def expected_bytes(tree: Any, dtypes: list[np.dtype], namespace: str = "") -> bytes:
    leaves = optree.tree_leaves(tree, namespace=namespace)
    return b"".join(np.asarray(x, d).tobytes() for x, d in zip(leaves, dtypes))


def assert_same(one: Any, two: Any, namespace: str = "") -> None:
    left, structure = optree.tree_flatten(one, namespace=namespace)
    right, other = optree.tree_flatten(two, namespace=namespace)
    assert structure == other
    for a, b in zip(left, right):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert a.tobytes() == b.tobytes()  # bytes, so that NaN and padding count


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
NS = "echo-test"


@settings(deadline=None)
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


@settings(deadline=None)
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


def test_views_are_views_of_the_buffer() -> None:
    flat = flattener(Step(np.zeros(2, np.uint16), {"x": np.zeros((), np.uint8)}))
    buffer = bytearray(15)
    batch = flat.view(buffer, 3)
    assert type(batch) is Step and batch.obs.shape == (3, 2) and batch.reward["x"].shape == (3,)
    batch.obs[1] = 0x0201
    batch.reward["x"][2] = 7
    assert bytes(buffer) == bytes([0, 0, 0, 0, 1, 2, 1, 2, 0, 0, 0, 0, 0, 0, 7])
    with pytest.raises(BufferError):
        buffer.extend(b"more")  # exported for as long as an array lives
    part = batch.obs[1:]
    del batch
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    del part
    buffer.extend(b"more")
    assert not flat.view(bytes(15), 3).obs.flags.writeable
    assert not flat.view(bytes(5)).obs.flags.writeable


def test_views_know_when_they_are_not_aligned() -> None:
    flat = flattener([np.zeros(1, np.uint8), np.zeros(1, np.float64)])
    one, two = flat.view(bytearray(9))
    assert one.flags.aligned and not two.flags.aligned and two[0] == 0.0


@pytest.mark.parametrize("size", [0, 8, 31, 33])
def test_view_refuses_other_sizes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        flattener({"x": np.zeros(2, np.float32)}).view(bytearray(size), 4)


def test_view_refuses_gaps() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        flattener(np.zeros(4, np.uint8)).view(memoryview(bytearray(8))[::2])


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


BAD_SAMPLES = [
    {"obs": np.zeros(4, np.int32), "reward": 1.0, "r": np.zeros(1, [("a", "i4")])},
    {"obs": np.zeros(4, np.float32), "reward": 1e40, "r": np.zeros(1, [("a", "i4")])},
    {"obs": np.zeros(4, np.float32), "reward": 1.0, "r": np.zeros(1, [("b", "i4")])},
    {"obs": np.zeros(4, np.float32), "reward": 1.0, "q": np.zeros(1, [("a", "i4")])},
    {"obs": np.zeros(4, np.float32), "reward": 1.0},
    {"obs": object(), "reward": 1.0, "r": np.zeros(1, [("a", "i4")])},
    [1, 2, 3],
]


def test_nothing_leaks() -> None:
    record = np.dtype([("a", "i4")])
    example = {
        "obs": np.zeros(4, np.float32),
        "reward": np.zeros((), np.float32),
        "r": np.zeros(1, record),
    }
    flat = flattener(example)
    good = [
        example,
        {"r": example["r"], "reward": 1.0, "obs": example["obs"]},
        {"obs": np.zeros(4, ">f4"), "reward": np.float32(2), "r": np.zeros(2, record)[::2]},
    ]
    stacked = {
        "obs": np.zeros((2, 4), np.float32),
        "reward": np.zeros(2, np.float32),
        "r": np.zeros((2, 1), record),
    }
    buffer = bytearray(flat.sample_bytes)
    watched = [record, np.dtype(np.float32), flat.specs[0].dtype, "obs", *good, *BAD_SAMPLES]
    watched += [example["obs"], example["r"], stacked["obs"], buffer, flat, None, 1.0]

    def exercise() -> None:
        for sample in good:
            flat.check(sample)
            flat.tobytes(sample)
            flat.flatten(sample)
        for sample in BAD_SAMPLES:
            for call in (
                flat.check,
                flat.tobytes,
                flat.flatten,
                flat.check_batch,
                flat.batch_tobytes,
            ):
                with pytest.raises(SpecError):
                    call(sample)
        flat.batch_tobytes(stacked)
        flat.view(buffer)
        with pytest.raises(ValueError, match="bytes"):
            flat.view(buffer, 2)

    for _ in range(3):
        exercise()
    gc.collect()
    before, objects = [sys.getrefcount(x) for x in watched], len(gc.get_objects())
    blocks = sys.getallocatedblocks()
    for _ in range(200):
        exercise()
    gc.collect()
    after = [sys.getrefcount(x) for x in watched]
    assert [abs(a - b) <= 5 for a, b in zip(before, after)] == [True] * len(watched), (
        before,
        after,
    )
    assert abs(len(gc.get_objects()) - objects) < 200
    assert abs(sys.getallocatedblocks() - blocks) < 1000


def test_the_base_lives_as_long_as_any_array() -> None:
    flat = flattener({"a": np.zeros(1), "b": (np.zeros(1), [np.zeros(1)])})
    buffer = bytearray(24)
    count = sys.getrefcount(buffer)
    for _ in range(100):
        flat.view(buffer)
    assert sys.getrefcount(buffer) == count
    last = flat.view(buffer)["b"][1][0]
    assert sys.getrefcount(buffer) > count
    del last
    assert sys.getrefcount(buffer) == count


def test_failing_classes_leave_nothing_behind() -> None:
    class Positive(Step):
        armed = False

        def __new__(cls, obs: Any, reward: Any) -> Positive:
            if cls.armed:
                raise RuntimeError("not today")
            return super().__new__(cls, obs, reward)

    flat = flattener({"a": np.zeros(1), "p": Positive(np.zeros(1), np.zeros(1))})
    buffer = bytearray(24)
    count = sys.getrefcount(buffer)
    assert type(flat.view(buffer)["p"]) is Positive
    Positive.armed = True
    for _ in range(10):
        with pytest.raises(RuntimeError, match="not today"):
            flat.view(buffer)
    assert sys.getrefcount(buffer) == count


def test_many_threads_on_one_flattener() -> None:
    example = {
        "obs": np.zeros(64, np.float32),
        "reward": np.zeros((), np.float64),
        "n": [np.zeros(2, np.int8)],
    }
    flat = flattener(example)
    failures: list[object] = []

    def work(seed: int) -> None:
        values = np.random.default_rng(seed)
        for i in range(300):
            sample = {
                "obs": values.random(64, np.float32),
                "reward": float(seed) if i % 2 else np.float64(seed),
                "n": [values.integers(0, 9, 2).astype(np.int8)],
            }
            data = flat.tobytes(sample)
            again = flat.view(data)
            if (again["obs"] != sample["obs"]).any() or again["reward"] != seed:
                failures.append((seed, i))
            try:
                flat.check({**sample, "reward": "no"})
            except SpecError as error:
                if "'reward'" not in str(error):
                    failures.append(error)
            else:
                failures.append("accepted")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(old)
    assert failures == []


def test_more_leaves_than_fit_on_a_stack() -> None:
    example = {f"{i:03}": [np.full((), i, np.int32)] for i in range(300)}
    flat = flattener(example)
    assert np.frombuffer(flat.tobytes(example), np.int32).tolist() == list(range(300))
    batch = flat.view(bytearray(300 * 4 * 2), 2)
    assert len(batch) == 300 and batch["299"][0].shape == (2,)


def test_conversions_run_python_code_that_may_change_the_sample() -> None:
    """An array-like whose __array__ empties the sample must not leave us with dead arrays."""
    sample: dict[str, Any] = {}

    class Saboteur:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            sample.clear()
            gc.collect()
            return np.full(2, 5.0)

    flat = flattener({"a": np.zeros(1000), "b": np.zeros(2), "c": np.zeros(1000)})
    for _ in range(20):
        sample.update(a=np.full(1000, 1.0), b=Saboteur(), c=np.full(1000, 2.0))
        values = np.frombuffer(flat.tobytes(sample))
        assert values[:1000].tolist() == [1.0] * 1000 and values[1002:].tolist() == [2.0] * 1000


# --- rows -----------------------------------------------------------------------------------------


def test_row_writer() -> None:
    flat = flattener({"x": np.zeros(2, np.int16), "y": np.zeros((), np.float32)})
    x, y = np.zeros((3, 2), np.int16), np.zeros(3, np.float32)
    writer = RowWriter(flat, [x, y])
    assert writer.rows == 3
    writer.write(1, {"x": np.array([1, 2], np.int16), "y": 0.5})
    writer.write(2, {"x": np.array([[3, 4]], np.int16), "y": np.array([1.5], np.float32)})
    assert x.tolist() == [[0, 0], [1, 2], [3, 4]] and y.tolist() == [0, 0.5, 1.5]
    for row in (-1, 3):
        with pytest.raises(IndexError):
            writer.write(row, {"x": x[0], "y": 0.0})
    before = x.copy(), y.copy()
    for bad in (
        {"x": np.array([[9, 9]] * 2, np.int16), "y": 9.0},
        {"x": np.array([9, 9], np.int16), "y": np.float64(9)},
        {"x": np.array([9, 9], np.int16)},
    ):
        with pytest.raises(SpecError):
            writer.write(0, bad)
    assert (x == before[0]).all() and (y == before[1]).all()
    writer.write(0, {"x": x[1], "y": y[1]})  # from the very arrays it writes
    assert x[0].tolist() == [1, 2]


def test_row_writer_refuses_arrays_it_cannot_fill() -> None:
    flat = flattener({"x": np.zeros(2, np.int16)})
    frozen = np.zeros((3, 2), np.int16)
    frozen.flags.writeable = False
    for bad in (
        [],
        [np.zeros((3, 2))],
        [np.zeros((3, 4), np.int16)[:, ::2]],
        [frozen],
        [np.zeros(3, np.int16)],
    ):
        with pytest.raises(ValueError):
            RowWriter(flat, bad)
    wide = flattener({"x": np.zeros(2, np.int16), "y": np.zeros(1, np.int8)})
    with pytest.raises(ValueError, match="whole rows"):
        RowWriter(wide, [np.zeros((3, 2), np.int16), np.zeros((4, 1), np.int8)])

"""What a flattener borrows and keeps: nothing leaks, nothing goes too early, threads and changing samples included."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest
from containers import Step, flattener

from echo_core.base.errors import SpecError

pytestmark = pytest.mark.every_python

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

"""The kernels: each test runs those in numpy and, where they were compiled, the compiled ones; and one is the oracle of the other."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_rl import kernels
from echo_rl.kernels import bandwidth, plans, sequences

NUMPY = SimpleNamespace(**{name: value for module in (bandwidth, plans, sequences) for name, value in vars(module).items()})
STUBS = Path(__file__).resolve().parents[3] / "tools" / "stubs.txt"
COMPILED = importlib.util.find_spec("echo_rl.kernels._native")
needs_compiled = pytest.mark.skipif(COMPILED is None, reason="the kernels were not compiled")
both = pytest.mark.parametrize("kind", ["numpy", pytest.param("compiled", marks=needs_compiled)])

DTYPES = ["f2", "f4", ">f4", "f8", ">f8", "i1", "u2", "i8", "u8"]
arrays = st.builds(
    lambda shape, steps, dtype, seed, packed: strided(shape, steps, dtype, seed, packed),
    st.tuples(st.integers(1, 5), st.integers(0, 40)),
    st.tuples(st.sampled_from([-2, -1, 1, 3]), st.sampled_from([-2, -1, 1, 3])),
    st.sampled_from(DTYPES),
    st.integers(0, 999),
    st.booleans(),
)


def of(kind: str) -> Any:
    """The functions of one kind."""
    if kind == "numpy":
        return NUMPY
    from echo_rl.kernels import _native

    return _native


def strided(shape: tuple[int, int], steps: tuple[int, int], dtype: str, seed: int, packed: bool) -> np.ndarray[Any, Any]:
    """An array of that shape with any strides. A packed one is a field of records, whose values are not aligned."""
    numbers = np.random.default_rng(seed).integers(0, 99, (shape[0] * abs(steps[0]), shape[1] * abs(steps[1])))
    if packed:
        records = np.zeros(numbers.shape, [("before", "u1"), ("value", dtype)])
        records["value"] = numbers
        return records["value"][:: steps[0], :: steps[1]]
    return np.asarray(numbers.astype(dtype)[:: steps[0], :: steps[1]])


@needs_compiled
@given(a=arrays, b=arrays, weights=st.tuples(st.floats(0, 9), st.floats(0, 9)))
def test_compiled_plans_are_those_of_numpy(a: Any, b: Any, weights: tuple[float, float]) -> None:
    native = of("compiled")
    other = np.resize(b, a.shape).astype(b.dtype) if b.size else np.zeros(a.shape, b.dtype)
    mean, rewards = other[0], other[:, :1].sum(1)
    close(native.plan_surprise_batch(a, mean, rewards, *weights), NUMPY.plan_surprise_batch(a, mean, rewards, *weights))
    close(native.plan_surprise(a[-1], mean, 2.0, *weights), NUMPY.plan_surprise(a[-1], mean, 2.0, *weights))
    close(native.temporal_kl_batch(a, other, 0.7), NUMPY.temporal_kl_batch(a, other, 0.7))
    close(native.temporal_kl(a[-1], mean, 0.7), NUMPY.temporal_kl(a[-1], mean, 0.7))
    if a.shape[1]:
        one, two = native.EMAPlanTracker(a.shape[1], 0.9), NUMPY.EMAPlanTracker(a.shape[1], 0.9)
        for plan in a:
            close(one.update(plan), two.update(plan))
        assert one.initialized and two.initialized


@needs_compiled
@given(a=arrays, b=arrays, scale=st.floats(0.1, 9))
def test_compiled_costs_are_those_of_numpy(a: Any, b: Any, scale: float) -> None:
    native = of("compiled")
    close(native.attention_bandwidth_cost_batch(a, scale), NUMPY.attention_bandwidth_cost_batch(a, scale))
    width = b[0] if b.shape[1] == a.shape[1] else 3.0
    close(native.schedule_priorities(a, width, a[::-1], 0.5, scale, 0.1), NUMPY.schedule_priorities(a, width, a[::-1], 0.5, scale, 0.1))
    close(native.bandwidth_aware_priorities(a, a, width), NUMPY.bandwidth_aware_priorities(a, a, width))
    for t, reused in np.resize(a, (4, 2)) if a.size else ():
        t, reused = float(t), float(reused)
        close(native.effective_bandwidth_cost(t, reused, scale), NUMPY.effective_bandwidth_cost(t, reused, scale))
        close(native.bandwidth_efficiency(t, scale, reused), NUMPY.bandwidth_efficiency(t, scale, reused))


@needs_compiled
@given(a=arrays, n=st.integers(0, 50), temperature=st.floats(0.5, 99), beta=st.floats(0, 1), normalize=st.booleans())
def test_compiled_draws_prefixes_and_hashes_are_those_of_numpy(a: Any, n: int, temperature: float, beta: float, normalize: bool) -> None:
    native = of("compiled")
    assert native.state_hash(a) == NUMPY.state_hash(a)
    few = (a % 2).astype(a.dtype)
    for sequence in (few[0], few[-1][: a.shape[1] // 2], few[0].astype("i4")):
        assert native.prefix_match(sequence, few) == NUMPY.prefix_match(sequence, few) == native.prefix_match(sequence, list(few))
    if a.shape[1]:
        drawn = [f(a[0], n, temperature, beta, seed=7, normalize=normalize) for f in (native.priority_sample, NUMPY.priority_sample)]
        assert (drawn[0][0] == drawn[1][0]).all()
        close(drawn[0][1], drawn[1][1])


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)
    assert np.shape(found) == np.shape(expected)


@needs_compiled
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("plan_surprise", ([[1.0]], [1.0], 1.0)),
        ("plan_surprise_batch", (np.zeros((2, 3)), np.zeros(4), np.zeros(2))),
        ("plan_surprise_batch", (np.zeros((2, 3), "f4"), np.zeros(3), np.zeros(5))),
        ("plan_surprise_batch", (np.zeros(3, "f4"), np.zeros(3), np.zeros(1))),
        ("temporal_kl", ([1.0, 2.0], [1.0])),
        ("temporal_kl_batch", (np.zeros((2, 3)), np.zeros((2, 4)))),
        ("temporal_kl_batch", (np.zeros((2, 3)), np.zeros((2, 3)), 0.0)),
        ("attention_bandwidth_cost", (-1.0,)),
        ("attention_bandwidth_cost_batch", ([1.0, np.nan],)),
        ("effective_bandwidth_cost", (np.inf, 1.0)),
        ("schedule_priorities", ([1.0], [-1.0], [1.0])),
        ("schedule_priorities", ([1.0], [1.0], [np.inf])),
        ("schedule_priorities", ([1.0], [1.0], [1.0], -1.0)),
        ("bandwidth_efficiency", (1.0, 0.0)),
        ("priority_sample", ([], 1)),
        ("priority_sample", ([np.nan], 1)),
        ("priority_sample", ([1.0], 1, 0.0)),
        ("EMAPlanTracker", (0,)),
        ("EMAPlanTracker", (2, 1.0)),
        ("state_hash", ([object()],)),
    ],
)
def test_both_kinds_refuse_the_same_with_the_same_words(name: str, arguments: tuple[Any, ...]) -> None:
    found = []
    for kind in ("numpy", "compiled"):
        with pytest.raises((ValueError, TypeError)) as error:
            getattr(of(kind), name)(*arguments)
        found.append((error.type, str(error.value)))
    assert found[0] == found[1]


@needs_compiled
@pytest.mark.parametrize("ending", ["", "numpy"])
def test_the_variable_takes_those_in_numpy(ending: str) -> None:
    program = "from echo_rl import kernels; print(kernels.kernels_available(), type(kernels.state_hash).__name__, kernels.plan_surprise([1.0], [3.0], 2))"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "ECHO_RL_KERNELS": ending}, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == (["False", "function", "6.0"] if ending else ["True", "cython_function_or_method", "6.0"])


def test_the_package_says_which_kind_it_uses() -> None:
    native: ModuleType | None = sys.modules.get("echo_rl.kernels._native")
    assert kernels.kernels_available() == (native is not None and kernels.prefix_match is native.prefix_match)


@both
def test_the_cost_of_a_cached_prefix_is_left_out(kind: str) -> None:
    kernels = of(kind)
    assert kernels.effective_bandwidth_cost(128, 96, 1.0) == 3600
    assert kernels.effective_bandwidth_cost(128, 500) == 0
    assert kernels.effective_bandwidth_cost(128, -5) == kernels.attention_bandwidth_cost(128)
    # float32 is inexact here.
    assert kernels.attention_bandwidth_cost(100_001) == 100_001 * 100_002 / 2


@both
@given(step=st.sampled_from([-3, -1, 1, 2]), dtype=st.sampled_from(["f2", "f4", ">f4", "f8", "i1", "i8"]), seed=st.integers(0, 99))
def test_strided_inputs_are_read_right(kind: str, step: int, dtype: str, seed: int) -> None:
    kernels = of(kind)
    rng = np.random.default_rng(seed)
    plans = rng.integers(-9, 9, (12, 15)).astype(dtype)[::step, ::step]
    mean, rewards = plans[0], plans[:, 0]
    expected = [sum((float(a) - float(b)) ** 2 for a, b in zip(row, mean, strict=True)) + abs(float(row[0])) for row in plans]
    np.testing.assert_allclose(kernels.plan_surprise_batch(plans, mean, rewards), expected, rtol=1e-6)
    divergences = [sum((float(a) - float(b)) ** 2 for a, b in zip(row, mean, strict=True)) / 8 for row in plans]
    np.testing.assert_allclose(kernels.temporal_kl_batch(plans, np.broadcast_to(mean, plans.shape), 2.0), divergences, rtol=1e-6)
    assert kernels.state_hash(plans) == kernels.state_hash(plans.copy())


@both
@given(sequence=st.lists(st.integers(0, 1), max_size=6), cached=st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=8))
def test_the_longest_prefix_wins(kind: str, sequence: list[int], cached: list[list[int]]) -> None:
    kernels = of(kind)

    def shared(other: list[int]) -> int:
        n = 0
        while n < min(len(sequence), len(other)) and sequence[n] == other[n]:
            n += 1
        return n

    lengths = [shared(other) for other in cached]
    longest = max(lengths, default=0)
    assert kernels.prefix_match(sequence, cached) == ((lengths.index(longest), longest) if longest else (-1, 0))


@both
@given(
    sequence=st.lists(st.integers(0, 1), max_size=5),
    shape=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    step=st.sampled_from([-2, -1, 1, 2]),
    dtype=st.sampled_from(["u1", ">i4", "i8", "f4"]),
    seed=st.integers(0, 99),
)
def test_rows_of_one_array_are_found_like_a_list(kind: str, sequence: list[int], shape: tuple[int, int], step: int, dtype: str, seed: int) -> None:
    kernels = of(kind)
    rows = np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)[::step, ::step]
    assert kernels.prefix_match(sequence, rows) == kernels.prefix_match(sequence, list(rows))


@both
def test_a_tracker_copies_the_first_plan_and_refuses_another_width(kind: str) -> None:
    kernels = of(kind)
    tracker = kernels.EMAPlanTracker(2, 0.5)
    assert not tracker.initialized and tracker.mean.tolist() == [0, 0]
    tracker.update([2, 4])
    assert tracker.update([4, 0]).tolist() == [3, 2]
    with pytest.raises(ValueError, match="equally wide, got 3 and 2"):
        tracker.update([1, 2, 3])


@both
def test_weights_of_a_softmax_draw_undo_it(kind: str) -> None:
    kernels = of(kind)
    priorities = np.linspace(0, 2, 50)
    indices, weights = kernels.priority_sample(priorities, 200_000, seed=1)
    assert np.mean(weights * priorities[indices]) == pytest.approx(1.0, abs=0.02)
    again, _ = kernels.priority_sample(priorities, 200_000, seed=1)
    assert (again == indices).all()
    assert kernels.priority_sample(priorities, 9, seed=1, normalize=True)[1].max() == 1


@both
def test_priorities_and_efficiency(kind: str) -> None:
    kernels = of(kind)
    assert kernels.bandwidth_aware_priorities([1.0], [3.0], [1.0], 1.0).tolist() == [0.2]
    assert kernels.schedule_priorities([1.0], [3.0], [1.0], 0.0, 3.0, 1.0).tolist() == [0.25]
    assert kernels.bandwidth_efficiency(2, 3, 1) == 0.5
    with pytest.raises(ValueError, match="cost greater than 0"):
        kernels.bandwidth_efficiency(1, 0)


@needs_compiled
def test_the_stub_says_what_the_module_is(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")  # the module does not use it, and to read it takes a minute
    options = ["--concise", "--mypy-config-file", "mypy.ini", "--allowlist", str(STUBS), "--ignore-unused-allowlist"]
    command = [sys.executable, "-m", "mypy.stubtest", *options, "echo_rl.kernels._native"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

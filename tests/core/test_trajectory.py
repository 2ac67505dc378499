"""Trajectories: filled row by row, refused with timescale and leaf, never half written."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from echo_core.base.errors import SpecError
from echo_core.client.trajectory import TrajectoryAccumulator
from echo_core.spec.spec import Spec

T = 4
EXAMPLE = {
    "step": {"obs": np.zeros((T, 3), np.float32), "reward": np.zeros(T, np.float32)},
    "episode": {"return": np.zeros(1, np.float32)},
}


class Bootstrap(NamedTuple):
    value: Any
    obs: Any


def row(i: int) -> dict[str, Any]:
    return {"obs": np.full(3, i, np.float32), "reward": np.float32(i / 2)}


def fill(trajectory: TrajectoryAccumulator, start: int = 0) -> None:
    for i in range(T):
        trajectory.add("step", row(start + i))
    trajectory.add("episode", {"return": np.array([start], np.float32)})


def test_a_rollout() -> None:
    trajectory = TrajectoryAccumulator(EXAMPLE)
    for start in (0, 10):
        fill(trajectory, start)
        sample = trajectory.build()
        assert sample["step"]["obs"].tolist() == [[start + i] * 3 for i in range(T)]
        assert sample["step"]["reward"].tolist() == [(start + i) / 2 for i in range(T)]
        assert sample["episode"]["return"].tolist() == [start]
        Spec.from_example(EXAMPLE).check(sample)
    assert trajectory.spec == Spec.from_example(EXAMPLE)


def test_the_counters() -> None:
    trajectory = TrajectoryAccumulator(EXAMPLE)
    assert trajectory.capacities == {"step": T, "episode": 1}
    assert trajectory.counts == {"step": 0, "episode": 0} and not trajectory.is_full
    trajectory.add("step", row(1))
    assert trajectory.counts == {"step": 1, "episode": 0}
    assert repr(trajectory) == "TrajectoryAccumulator(step: 1/4, episode: 0/1)"
    trajectory.reset()
    assert trajectory.counts == {"step": 0, "episode": 0}
    fill(trajectory)
    assert trajectory.is_full
    trajectory.build()
    assert not trajectory.is_full


def test_build_lends_its_arrays_until_the_next_add() -> None:
    trajectory = TrajectoryAccumulator(EXAMPLE)
    fill(trajectory, 0)
    lent = trajectory.build()
    fill(trajectory, 100)
    own = trajectory.build(copy=True)
    assert lent["step"]["obs"][0, 0] == 100  # documented: overwritten
    fill(trajectory, 200)
    assert own["step"]["obs"][0, 0] == 100 and own["episode"]["return"][0] == 100


def test_what_is_done_to_a_built_tree_does_no_harm() -> None:
    trajectory = TrajectoryAccumulator(EXAMPLE)
    fill(trajectory)
    sample = trajectory.build()
    sample["step"].clear()
    sample["extra"] = 1
    fill(trajectory)
    assert set(trajectory.build()) == {"step", "episode"}


def test_incomplete_trajectories_are_refused() -> None:
    trajectory = TrajectoryAccumulator(EXAMPLE)
    trajectory.add("step", row(0))
    with pytest.raises(SpecError, match="missing 3 of 4 rows of 'step', 1 of 1 rows of 'episode'"):
        trajectory.build()
    assert trajectory.counts == {"step": 1, "episode": 0}  # nothing was dropped


def test_a_full_timescale_takes_no_more() -> None:
    trajectory = TrajectoryAccumulator(EXAMPLE)
    fill(trajectory)
    for name, data in (("step", row(9)), ("episode", {"return": np.ones(1, np.float32)})):
        with pytest.raises(IndexError, match=f"Timescale '{name}' has [0-9]+ slots, but you tried to add at index"):
            trajectory.add(name, data)
    assert trajectory.build()["step"]["obs"].max() == T - 1


def test_unknown_timescale() -> None:
    with pytest.raises(KeyError, match="did you mean 'step'"):
        TrajectoryAccumulator(EXAMPLE).add("steps", row(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.array([0, 1e39, 0])}, r"timescale 'step': leaf 'obs' is float32 and cannot hold 1e\+39 at \(1,\)"),
        ({"obs": np.array([[0, 0, 2**24 + 1]])}, r"timescale 'step': leaf 'obs' is float32 and cannot hold 16777217 at \(0, 2\)"),
        ({"obs": np.zeros(3, np.complex64)}, "timescale 'step': leaf 'obs' is float32 and cannot hold complex64"),
        ({"obs": np.zeros(3, "U1")}, "timescale 'step': leaf 'obs' must be float32, got <U1"),
        ({"obs": np.zeros(1, np.float32)}, r"leaf 'obs' must have shape \(3,\), got \(1,\)"),
        ({"obs": np.zeros((3, 1), np.float32)}, r"leaf 'obs' must have shape \(3,\), got \(3, 1\)"),
        ({"obs": np.zeros((2, 3), np.float32)}, r"leaf 'obs' must have shape \(3,\), got \(2, 3\)"),
        ({"obs": np.float32(1)}, r"leaf 'obs' must have shape \(3,\), got \(\)"),
        ({"obs": 1.0}, "leaf 'obs' must be an array"),
        ({"reward": np.float64(1e39)}, r"leaf 'reward' is float32 and cannot hold 1e\+39"),
        ({"reward": "1"}, "leaf 'reward'"),
        ({"done": np.False_}, "timescale 'step': 'done' is not in the example"),
    ],
)
def test_a_wrong_row_changes_nothing(change: dict[str, Any], message: str) -> None:
    trajectory = TrajectoryAccumulator(EXAMPLE)
    fill(trajectory, 50)
    trajectory.build()
    trajectory.add("step", row(0))
    with pytest.raises(SpecError, match=message):
        trajectory.add("step", {**row(1), **change})
    with pytest.raises(SpecError, match="'reward' is missing"):
        trajectory.add("step", {"obs": np.zeros(3, np.float32)})
    assert trajectory.counts["step"] == 1
    for i in range(1, T):
        trajectory.add("step", row(i))
    trajectory.add("episode", {"return": np.zeros(1, np.float32)})
    assert trajectory.build()["step"]["obs"][:, 0].tolist() == list(range(T))


def test_rows_may_have_a_leading_one_and_scalars_are_weak() -> None:
    trajectory = TrajectoryAccumulator(EXAMPLE)
    trajectory.add("step", {"obs": np.ones((1, 3), np.float32), "reward": np.ones(1, np.float32)})
    trajectory.add("step", {"obs": np.ones((1, 3), np.float32), "reward": 2.0})
    trajectory.add("step", {"obs": np.ones(3, np.float32), "reward": 3})
    trajectory.add("step", {"obs": np.ones(3, ">f4"), "reward": np.array(4, np.float32)})
    trajectory.add("episode", {"return": np.float32(5)})
    sample = trajectory.build()
    assert sample["step"]["reward"].tolist() == [1, 2, 3, 4] and (sample["step"]["obs"] == 1).all()
    assert sample["episode"]["return"].tolist() == [5]


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        (
            "f4",
            [0.1, 1e-50, np.inf, -np.inf, np.nan, np.float16(0.1), 3, np.uint8(200), True, np.longdouble(0.5), np.array(0.1)],
            [1e39, -1e300, 2**24 + 1, np.int64(-(2**62) - 1), 2**70 + 1],
        ),
        ("f8", [np.float32(0.1), 2**53, np.uint64(2**63)], [2**53 + 1, np.int64(2**63 - 1), np.uint64(2**64 - 1)]),
        (
            "i4",
            [1.0, -7.0, np.float32(1e6), np.int64(2**31 - 1), np.uint64(5), False, np.array(2.0)],
            [0.5, np.nan, np.inf, 2.0**31, np.float64(-(2.0**40)), np.int64(2**31), 1e300],
        ),
        ("i8", [2.0**62, -(2.0**63)], [2.0**63, -np.inf, np.uint64(2**63), 2**63]),
        ("u8", [2.0**63, np.int8(3)], [2.0**64, -1.0, np.int8(-1), -(2.0**63)]),
        ("u1", [255.0, np.int64(0)], [256.0, -1, np.int64(256), -0.5]),
        ("?", [True, 1.0, np.uint8(0)], [2, 0.5, np.nan, -1.0]),
        ("c8", [1, 0.5, 1j, np.complex128(0.1 + 1j), np.float64(0.1)], [1e39, complex(0, 1e39), 2**24 + 1]),
        (ml_dtypes.bfloat16, [0.1, np.float32(3), 256], [257, 1e39]),
        (ml_dtypes.float8_e4m3fn, [0.3, np.float64(448)], [1000.0, np.inf]),
        (ml_dtypes.int4, [7.0, -8], [8.0, np.int64(-9)]),
    ],
    ids=str,
)
def test_numbers_are_cast_and_what_does_not_fit_is_refused(dtype: Any, good: list[Any], bad: list[Any]) -> None:
    trajectory = TrajectoryAccumulator({"one": {"x": np.zeros((), dtype)}, "rows": {"x": np.zeros((2, 3), dtype)}})
    for value in good:
        expected = np.array(value).astype(dtype)
        trajectory.add("one", {"x": value})
        trajectory.add("rows", {"x": np.full(3, value)})
        trajectory.add("rows", {"x": np.full((1, 6), value)[:, ::2]})
        sample = trajectory.build()
        for array in (sample["one"]["x"], sample["rows"]["x"]):
            assert array.dtype == dtype
            assert array.tobytes() == expected.tobytes() * array.size, value
    for value in bad:
        for name, data in (("one", value), ("rows", np.full(3, value))):
            with pytest.raises(SpecError, match=f"timescale '{name}': leaf 'x'"):
                trajectory.add(name, {"x": data})
    assert trajectory.counts == {"one": 0, "rows": 0}


def test_the_two_kinds_of_timescale() -> None:
    example = {
        "buffered": [np.zeros((2, 3)), (np.zeros(2, np.int8),)],
        "scalar": np.zeros((), np.float64),
        "mixed": {"a": np.zeros(()), "b": np.zeros((5, 2)), "c": np.zeros((1, 4))},
        "ones": Bootstrap(np.zeros(1), np.zeros((1, 3))),
    }
    trajectory = TrajectoryAccumulator(example)
    assert trajectory.capacities == {"buffered": 2, "scalar": 1, "mixed": 1, "ones": 1}
    trajectory.add("buffered", [np.full(3, 1.0), (np.int8(1),)])
    trajectory.add("buffered", [np.full(3, 2.0), (2,)])
    trajectory.add("scalar", 0.5)
    trajectory.add("mixed", {"a": 1.0, "b": np.ones((5, 2)), "c": np.full((1, 4), 2.0)})
    trajectory.add("ones", Bootstrap(np.ones(1), np.full(3, 7.0)))
    sample = trajectory.build()
    assert sample["buffered"][0].tolist() == [[1] * 3, [2] * 3]
    assert sample["buffered"][1][0].tolist() == [1, 2]
    assert sample["scalar"].shape == () and sample["scalar"] == 0.5
    assert sample["mixed"]["b"].sum() == 10 and sample["mixed"]["c"].tolist() == [[2] * 4]
    assert type(sample["ones"]) is Bootstrap and sample["ones"].obs.tolist() == [[7] * 3]
    Spec.from_example(example).check(sample)


def test_examples_that_make_no_sense() -> None:
    with pytest.raises(TypeError, match="dict of timescales"):
        TrajectoryAccumulator([np.zeros((2, 3))])  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="timescale 'empty' has no arrays"):
        TrajectoryAccumulator({"empty": {}})
    with pytest.raises(SpecError, match="'step': leaf 'b' has leading dimension 3, leaf 'a' has 2"):
        TrajectoryAccumulator({"step": {"a": np.zeros((2, 1)), "b": np.zeros(3)}})
    with pytest.raises(SpecError, match="0 rows"):
        TrajectoryAccumulator({"step": np.zeros((0, 3))})
    with pytest.raises(SpecError, match="leaf 'step/a' of the example"):
        TrajectoryAccumulator({"step": {"a": 1.0}})


def test_ordered_dicts_and_empty_rows() -> None:
    trajectory = TrajectoryAccumulator(
        {"s": collections.OrderedDict(b=np.zeros((2, 0)), a=np.zeros((2, 1)))}
    )
    trajectory.add("s", {"a": np.ones(1), "b": np.zeros(0)})
    trajectory.add("s", {"b": np.zeros(0), "a": np.ones(1)})
    assert trajectory.build()["s"]["a"].tolist() == [[1], [1]]
    nothing = TrajectoryAccumulator({"s": np.zeros((3, 0))})
    for _ in range(3):
        nothing.add("s", np.zeros(0))
    assert nothing.build()["s"].shape == (3, 0)


def test_rows_may_come_from_the_trajectory_itself() -> None:
    trajectory = TrajectoryAccumulator({"s": np.zeros((3, 2))})
    for value in (1.0, 2.0, 3.0):
        trajectory.add("s", np.full(2, value))
    last = trajectory.build()["s"][2]
    trajectory.add("s", last)  # the next rollout begins where this one ended
    trajectory.add("s", np.zeros(2))
    trajectory.add("s", np.zeros(2))
    assert trajectory.build()["s"].tolist() == [[3, 3], [0, 0], [0, 0]]

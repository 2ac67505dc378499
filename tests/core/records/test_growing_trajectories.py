"""`TrajectoryAccumulator` with an example of Ragged leaves: whole episodes of varying length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echo_core import Ragged, SpecError, TrajectoryAccumulator

EXAMPLE = {
    "step": {"obs": Ragged("f4", (2,), most=200), "action": Ragged("i8")},
    "episode": {"return": np.zeros((), np.float32)},
}


def fill(trajectory: TrajectoryAccumulator, length: int, first: int = 0) -> None:
    for i in range(first, first + length):
        trajectory.add("step", {"obs": np.full(2, i, np.float32), "action": i})
    trajectory.add("episode", {"return": float(length)})


@pytest.mark.parametrize("length", [0, 1, 64, 65, 200])
def test_an_episode_of_any_length_is_built_whole(length: int) -> None:
    trajectory = TrajectoryAccumulator(EXAMPLE)
    for first in (0, 1000):  # the second episode writes into the arrays of the first
        fill(trajectory, length, first)
        assert trajectory.is_full
        assert trajectory.counts == {"step": length, "episode": 1}
        sample = trajectory.build()
        assert sample["step"]["obs"].shape == (length, 2)
        assert sample["step"]["action"].tolist() == list(range(first, first + length))
        assert sample["episode"]["return"] == length
    assert trajectory.counts == {"step": 0, "episode": 0}
    assert trajectory.capacities == {"step": 200, "episode": 1}


def test_a_copy_stays_as_it_was() -> None:
    trajectory = TrajectoryAccumulator(EXAMPLE)
    fill(trajectory, 3)
    kept = trajectory.build(copy=True)
    fill(trajectory, 3, 50)
    assert kept["step"]["action"].tolist() == [0, 1, 2]


def test_more_rows_than_the_axis_has_are_refused_and_the_rest_stays() -> None:
    trajectory = TrajectoryAccumulator(EXAMPLE)
    fill(trajectory, 200)
    with pytest.raises(IndexError, match="Timescale 'step' has 200 rows, the most of its axis 't'"):
        trajectory.add("step", {"obs": np.zeros(2, "f4"), "action": 1})
    assert len(trajectory.build()["step"]["obs"]) == 200


def test_a_row_that_does_not_fit_changes_nothing() -> None:
    trajectory = TrajectoryAccumulator(EXAMPLE)
    fill(trajectory, 2)
    with pytest.raises(SpecError, match=r"timescale 'step': leaf 'obs'"):
        trajectory.add("step", {"obs": np.zeros(3, "f4"), "action": 1})
    assert trajectory.counts["step"] == 2
    trajectory.reset()
    with pytest.raises(SpecError, match="missing 1 of 1 rows of 'episode'"):
        trajectory.build()


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"obs": Ragged("f4"), "x": np.zeros(3)}, "timescale 'step': leaf 'x' has a fixed shape, but the timescale grows along 't'"),
        ({"obs": Ragged("f4"), "x": Ragged("f4", axis="other")}, "leaf 'x' has the axis 'other'"),
    ],
)
def test_a_timescale_grows_along_one_axis(step: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        TrajectoryAccumulator({"step": step})


def test_two_timescales_of_one_axis_must_have_the_same_length() -> None:
    trajectory = TrajectoryAccumulator({"step": {"obs": Ragged("f4")}, "note": {"x": Ragged("f4", most=3)}})
    trajectory.add("step", {"obs": 1.0})
    with pytest.raises(SpecError, match="timescale 'note' has 0 rows and timescale 'step' has 1"):
        trajectory.build()
    trajectory.add("note", {"x": 2.0})
    assert trajectory.capacities == {"step": 3, "note": 3}
    sample = trajectory.build()
    assert (sample["step"]["obs"].tolist(), sample["note"]["x"].tolist()) == ([1.0], [2.0])

"""What tables of items over steps refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from step_tables import STEP, serve, step

from echo_core import ConfigError, FrameStack, MinSize, NStep, Sequences, Table
from echo_core.base.errors import EchoError

pytestmark = pytest.mark.needs("echo-samplers")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Sequences(0), "length must be a whole number from 1"),
        (lambda: Sequences(4, period=0), "period"),
        (lambda: Sequences(4, burn_in=-1), "burn_in"),
        (lambda: Sequences(4, pad=1), "pad must be True or False"),
        (lambda: Sequences(4, max_items=0), "max_items"),
        (lambda: NStep(0), "n must be"),
        (lambda: NStep(1, gamma=1.5), "gamma must be from 0 to 1"),
        (lambda: FrameStack(0), "n must be"),
        (lambda: FrameStack(4, fill="ones"), "'first' or 'zeros'"),
        (lambda: serve(NStep(1, reward="rewards")), "'steps': NStep: reward 'rewards' is not a leaf of .*did you mean 'reward'"),
        (lambda: serve(NStep(1), stack=FrameStack(2, "reward")), "cannot be stacked"),
        (lambda: serve(NStep(1), stack=FrameStack(2, "pixels")), "leaf 'pixels' is not a leaf of the step"),
        (lambda: serve(NStep(1), stack=[FrameStack(2), FrameStack(3)]), "two FrameStacks"),
        (lambda: serve(NStep(1), stack="obs"), "stack must be FrameStack"),
        (lambda: serve("nstep"), "items must be"),
        (lambda: serve(Sequences(80), capacity=79), "one item has 80 steps, more than capacity=79"),
        (lambda: Table("t", STEP, capacity=4, sampler="uniform", stack=FrameStack(2)), "give the table items="),
        (lambda: Table("t", {"reward": np.int32(0)}, capacity=4, sampler="uniform", items=NStep(1)), "float32 or float64"),
        (lambda: serve(Sequences(4, max_items=2), rate_limiter=MinSize(3)), "never give a batch"),
    ],
)
def test_what_cannot_work_is_refused_when_made(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


def test_steps_have_no_priorities_and_are_not_changed() -> None:
    table = serve(NStep(1)).table()
    sample = {"echo": np.zeros(2, np.uint64), "step": step(1)}
    with pytest.raises(ValueError, match="no priority"):
        table.submit(sample, priority=1.0)
    with pytest.raises(ValueError, match="no priorities"):
        rows = {"obs": np.zeros((1, 2), np.float32), "reward": np.zeros(1, np.float32)}
        table.submit_batch({"echo": np.zeros((1, 2), np.uint64), "step": rows}, priorities=[1.0])
    with pytest.raises(EchoError, match="share their steps"):
        table.update_items([1], {"obs": np.zeros((1, 2), np.float32)})
    assert table.stats()["steps"] == 0

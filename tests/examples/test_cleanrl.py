"""examples/cleanrl: the two files as their reader starts them; a gradient that is one; and that something was learned."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytestmark = pytest.mark.needs("echo-tcp", "echo-samplers")

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cleanrl"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"cleanrl_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_both_files_agree_about_a_transition_and_the_network() -> None:
    learner, worker = load("learner"), load("worker")
    assert {k: (v.dtype, v.shape) for k, v in learner.transition().items()} == {k: (v.dtype, v.shape) for k, v in worker.EXAMPLE.items()}
    params, obs = learner.make_network(np.random.default_rng(0)), np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    assert np.allclose(learner.forward(params, obs)[0], worker.q_values(params, obs))


def test_the_gradient_is_that_of_the_loss() -> None:
    learner, rng = load("learner"), np.random.default_rng(2)
    params = {key: value.astype(np.float64) + 0.01 for key, value in learner.make_network(rng).items()}
    obs, actions, targets = rng.standard_normal((6, 4)), rng.integers(0, 2, 6), rng.standard_normal(6)
    _, gradient = learner.loss_and_gradient(params, obs, actions, targets)
    for key, values in params.items():
        for index in rng.choice(values.size, min(10, values.size), replace=False):
            place, step = np.unravel_index(index, values.shape), 1e-6
            around = []
            for change in (step, -2 * step):
                values[place] += change
                around.append(learner.loss_and_gradient(params, obs, actions, targets)[0])
            values[place] += step
            assert gradient[key][place] == pytest.approx((around[0] - around[1]) / (2 * step), rel=1e-4, abs=1e-7), (key, place)


def test_a_learner_and_two_workers_learn_to_balance() -> None:
    command = [sys.executable, "-u", str(FOLDER / "learner.py"), "--updates", "2000"]
    learner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    workers: list[subprocess.Popen[str]] = []
    try:
        assert learner.stdout is not None
        found = re.search(r"tcp://\S+", learner.stdout.readline())
        assert found, learner.communicate()
        for seed in (1, 2):
            play = [sys.executable, str(FOLDER / "worker.py"), found[0], "--seed", str(seed), "--timeout", "3"]
            workers.append(subprocess.Popen(play, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        out, err = learner.communicate(timeout=150)
        assert learner.returncode == 0, err
        for worker in workers:
            said, wrong = worker.communicate(timeout=30)
            assert worker.returncode == 0 and "done: " in said and "Traceback" not in wrong, wrong
    finally:
        for process in (learner, *workers):
            if process.poll() is None:
                process.kill()
                process.communicate()
    drawn = re.search(r"drawn ([\d.]+) times", out)
    assert drawn and 20 < float(drawn[1]) <= 33, "the limiter keeps 32 draws to a transition, but for its start"
    returned = re.search(r"greedy return (\d+)", out)
    assert returned and int(returned[1]) > 60, f"{out}\na policy that learned nothing falls after about 10 to 25 steps"

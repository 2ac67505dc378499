"""DQN on a replay table, run for real: gradients, returns over several steps, and a short run of every sampler over TCP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium")

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from examples.dqn import agent, transitions  # noqa: E402

pytestmark = pytest.mark.needs("echo-core", "echo-samplers", "echo-tcp")


def test_gradient_is_that_of_the_loss(assert_gradient: Callable[..., None]) -> None:
    """Against central differences, in float64; with errors on both sides of where the Huber loss bends, and weights of all sizes."""
    rng = np.random.default_rng(3)
    net = agent.QNetwork(4, 2, hidden=(5, 3), seed=1, dtype=np.float64)
    net.flat += 0.3 * rng.standard_normal(net.flat.size)
    obs, actions = rng.standard_normal((12, 4)), rng.integers(0, 2, 12)
    targets, weights = 2 * rng.standard_normal(12), rng.uniform(0.1, 1, 12)

    def loss() -> float:
        return agent.loss_and_errors(net, obs, actions, targets, weights)[0]

    _, errors = agent.loss_and_errors(net, obs, actions, targets, weights)
    assert (np.abs(errors) > 1).any() and (np.abs(errors) < 1).any()
    gradient = net.gradient.copy()
    assert_gradient(net.flat, gradient, loss)


def test_a_sample_spans_steps_of_one_episode() -> None:
    """Every reward is 1, so a return tells how many steps are in it: as many as asked for, fewer only before an end, which has no value."""
    net = agent.QNetwork(4, 2)
    player = transitions.Player(count=8, span=3, discount=0.5, seed=5)
    try:
        batch = player.play(net.layers, epsilon=1.0, steps=300)
    finally:
        player.close()
    for key, leaf in transitions.example().items():
        assert batch[key].dtype == leaf.dtype and batch[key].shape == (len(batch["obs"]), *leaf.shape)
    assert set(batch["reward"].tolist()) == {1.0, 1.5, 1.75}
    whole, ended = batch["reward"] == 1.75, batch["discount"] == 0
    assert (batch["discount"][~ended] == 0.125).all()  # a random policy is never cut after 500 steps
    assert (whole | ended).all()
    fallen = (np.abs(batch["next_obs"][:, 0]) > 2.4) | (np.abs(batch["next_obs"][:, 2]) > 0.2095)
    assert (fallen == ended).all()
    # One in which the pole falls at once, one after two steps and one after three, for each end.
    counts = [int(((batch["reward"] == reward) & ended).sum()) for reward in (1.0, 1.5, 1.75)]
    assert max(counts) - min(counts) <= 8


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config"), "PYTHONUNBUFFERED": "1"}  # its own token, not the user's
    environment.pop("ECHO_TOKEN", None)
    environment.pop("ECHO_TOKEN_FILE", None)
    command = [sys.executable, "-m", "examples.dqn", "--out", str(folder / "out"), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL)


def test_it_learns_by_priority_over_the_network(tmp_path: Path) -> None:
    """Several times what a random policy gets, 22, within a few thousand transitions."""
    done = run(tmp_path, "--steps", "12000", "--target", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mean return" in done.stdout


def test_a_comparison_has_every_sampler_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run(tmp_path, "--compare", "--seeds", "1", "--steps", "2000")
    assert done.returncode == 0, done.stdout + done.stderr
    runs = json.loads((tmp_path / "out" / "compare.json").read_text())["runs"]
    assert [run["sampler"] for run in runs] == ["uniform", "prioritized", "hot_cold"]
    by_name = {run["sampler"]: run for run in runs}
    assert by_name["uniform"]["effective"][-1] == pytest.approx(64)
    assert by_name["prioritized"]["effective"][-1] < 60  # priorities came back, and count
    assert all(len(run["steps"]) >= 1 and run["updates"] > 100 for run in runs)
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_it_says_what_is_wrong(tmp_path: Path) -> None:
    done = run(tmp_path, "--transport", "tpc://127.0.0.1:0")
    assert done.returncode == 2 and "did you mean 'tcp'" in done.stderr and "Traceback" not in done.stderr

"""DQN on a replay table, run for real: gradients, returns over several steps, and a short run of every sampler over TCP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from echo_core import Server  # noqa: E402
from examples.dqn import agent, job, steps  # noqa: E402
from examples.dqn.options import Options  # noqa: E402

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


def _items(limit: int = 500) -> Any:
    """All transitions that the job's table makes of 300 steps of 8 environments under a random policy."""
    net = agent.QNetwork(4, 2)
    player = steps.Player(count=8, seed=5)
    player.envs.unwrapped.max_episode_steps = limit
    table = job.table(Options(sampler="uniform", capacity=4000, min_size=3000, span=3, discount=0.5))
    with Server(tables=[table], batch_size=1) as server:
        writer = server.table().writer()
        for _ in range(300):
            played = player.step(net.layers, epsilon=1.0)
            writer.send_batch(played.steps, ends=played.ends, streams=played.streams)
        player.close()
        return server.table().peek(server.table().keys())[0]


def test_a_sample_spans_steps_of_one_episode() -> None:
    """Every reward is 1, so a return tells how many steps are in it: as many as asked for, fewer only before an end, which has no value."""
    made = _items()
    assert set(made.returns.tolist()) == {1.0, 1.5, 1.75}
    ended = made.terminated
    assert (made.returns[~ended] == 1.75).all() and (made.discounts[~ended] == 0.125).all()
    # One in which the pole falls at once, one after two steps and one after three, for each end.
    counts = [int(((made.returns == total) & ended).sum()) for total in (1.0, 1.5, 1.75)]
    assert counts[0] > 50 and max(counts) - min(counts) <= 8


def test_an_episode_at_its_time_limit_is_bootstrapped_from_its_last_observation() -> None:
    """A pole never falls within 5 steps. The cart moves by its velocity times 0.02 s, so the position tells which step an observation follows."""
    made = _items(limit=5)
    assert not made.terminated.any() and set(made.discounts.tolist()) == {0.5, 0.25, 0.125}
    last = made.discounts == 0.5
    assert last.sum() == 8 * 50 and (made.returns[last] == 1).all()
    assert np.allclose(made.next["obs"][last, 0], made.batch["obs"][last, 0] + 0.02 * made.batch["obs"][last, 1], atol=1e-6)


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

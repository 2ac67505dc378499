"""The examples run, and what they print is what they are about."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples"
DRAWS = importlib.util.find_spec("matplotlib") is not None

pytestmark = pytest.mark.timeout(600)


def run(tmp_path: Path, name: str, *arguments: str) -> str:
    """What the program prints. Where matplotlib is, it draws, too."""
    plot = tmp_path / "plot.png"
    command = [sys.executable, name, *arguments, *(["--plot", str(plot)] if DRAWS else [])]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=550, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not DRAWS or plot.read_bytes()[:4] == b"\x89PNG"
    return done.stdout


def number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found, f"{pattern} is not in:\n{text}"
    return float(found[1])


def test_execution(tmp_path: Path) -> None:
    text = run(tmp_path, "async_execution_demo.py", "--length", "48", "--new", "8")
    # The first rollout of each of 8 tasks computes all tokens of its prompt but the last.
    assert "shared          512 new tokens" in text and f"{8 * 7 * 47} of {64 * 47} prompt tokens found (hit rate 0.875)" in text
    assert f"0 of {64 * 47} prompt tokens found (hit rate 0.000)" in text
    assert number(text, r"(\d+) of version 1") > 0


def test_bandwidth(tmp_path: Path) -> None:
    text = run(tmp_path, "bandwidth_efficient_demo.py", "--tries", "1", "--rollouts", "8", "--length", "64")
    shared, alone = (number(text, rf"{name} +eta_bw +([\d.]+)") for name in ("shared", "nothing shared"))
    saved, none = (number(text, rf"\n{name} .*cost saved +([\d.]+)") for name in ("shared", "nothing shared"))
    assert shared > alone > 0 and saved > none == 0


def test_replay(tmp_path: Path) -> None:
    text = run(tmp_path, "prioritized_replay_demo.py")
    rank, softmax = text.index("rank\n"), text.index("softmax\n")
    assert number(text[rank:], r"weighted mean +([\d.]+)") == pytest.approx(0.2, abs=0.005)
    assert number(text[rank:], r"effective sample size +([\d.]+)") > 1000 > 10 > number(text[softmax:], r"effective sample size +([\d.]+)")
    assert "  13: 9000 " in text, "items of the last nine versions are held"


def test_planning(tmp_path: Path) -> None:
    text = run(tmp_path, "latent_planning_demo.py", "--updates", "2")
    assert number(text, r"from the plan: R\^2 ([\d.-]+)") > number(text, r"from the state: R\^2 ([\d.-]+)")
    assert "32 branches" in text and "1270 prompt tokens computed, 39370 shared" in text


def test_the_picture_of_plans_says_how_well_what_it_shows_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.syspath_prepend(str(FOLDER))
    demo = importlib.import_module("latent_planning_demo")
    truth = np.array([[0.0, 1.0], [0.0, 2.0], [30.0, 3.0]])
    figures: list[Any] = []
    monkeypatch.setattr(pyplot.Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    predicted = {"plan": truth * [0.0, 1.0], "state": np.array([[0.0, 2.0], [0.0, 2.0], [30.0, 2.0]])}
    demo.draw(truth, predicted, [(1, 1.0, 1.0, 1, 0)], str(tmp_path / "plot.png"))
    labels = [text.get_text() for text in figures[0].axes[0].get_legend().get_texts()]
    assert labels == ["from the plan: R^2 1.00", "from the state: R^2 0.00"], "only the angular velocity is drawn"


def test_the_ablation_trains_every_arm_on_both_tasks(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    text = run(tmp_path, "planning_ablation.py", "--seeds", "2", "--updates", "1", "--result", str(result))
    runs = json.loads(result.read_text())["runs"]
    assert set(runs) == {"CartPole", "CartPole without velocities"}
    for task, arms in runs.items():
        assert list(arms) == ["state", "window", "plan", "plan + KL"]
        for arm, found in arms.items():
            assert [len(run["curve"]) for run in found] == [1, 1] and all(8 < run["curve"][0] < 100 for run in found), (task, arm)
            assert all((run["divergence_share"] > 0) == (arm == "plan + KL") for run in found)
    assert text.count("paired by seed") == 6
    assert re.findall(r"^ *(\d+) of 16: ", text, re.M) == [str(n) for n in range(1, 17)]  # it says after each run how far it is


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def test_cartpole_moves_like_gymnasiums() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    cartpole = load("cartpole")
    real, rng = gymnasium.make("CartPole-v1"), np.random.default_rng(0)
    for seed in range(5):
        state, _ = real.reset(seed=seed)
        over = False
        while not over:
            ours = real.unwrapped.state
            action = int(rng.integers(2))
            state, _, over, _, _ = real.step(action)
            ours = cartpole.moved(np.asarray(ours, np.float64)[None], np.array([action]))[0]
            np.testing.assert_allclose(ours, state, rtol=1e-5, atol=1e-6)
        assert abs(ours[0]) > cartpole.X_LIMIT or abs(ours[2]) > cartpole.ANGLE_LIMIT


def test_cartpole_begins_anew_after_an_end_and_a_limit() -> None:
    cartpole = load("cartpole")
    poles = cartpole.CartPoles(4, seed=0, limit=3)
    steps = [poles.step(np.array([0, 1, 0, 1])) for _ in range(3)]
    assert steps[-1].truncated.all() and not steps[-1].terminated.any() and steps[-1].returns == [3] * 4
    assert (np.abs(poles.state) <= 0.05).all() and not (np.abs(steps[-1].states * cartpole.SCALES) <= 0.05).all()
    assert cartpole.CartPoles(2, 0, velocities=False).seen().shape == (2, 2)
    alone = cartpole.CartPoles(1, seed=1)
    ends = [step for step in (alone.step(np.array([1])) for _ in range(30)) if step.terminated[0]]
    assert ends and 5 < ends[0].returns[0] < 20

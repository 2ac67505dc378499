"""Latent plans: what a trained encoder remembers, and a search whose branches share their prefix.

    python latent_planning_demo.py --plot planning.png

First, a planner learns CartPole without velocities with PPO. A linear probe then predicts the hidden velocities from its plans and, as a control,
from the state that the policy sees: R^2 on episodes that the probe was not fitted to. Second, `plan()` imagines continuations on an engine and
keeps the best one; the score counts how many different tokens a continuation has. The engine's counters say how many prompt tokens were shared.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import numpy as np
import torch
from cartpole import SCALES, CartPoles
from planning_ablation import COUNT, STEPS, TASKS, WINDOW, learner, train_with

from echo_rl.core.latent_planning import LatentPlanningOptimizer, PlanningConfig, StateWindows
from echo_rl.engine import Engine, Model, ModelConfig

Array = np.ndarray[Any, np.dtype[np.float64]]


def recorded(planner: LatentPlanningOptimizer, act: Any, seed: int, steps: int) -> tuple[Array, Array, Array]:
    """Plans, seen states and hidden velocities of episodes of the trained policy."""
    poles, windows = CartPoles(COUNT, seed, velocities=False), StateWindows(COUNT, WINDOW, 2)
    plans, seen, hidden = [], [], []
    for step in range(steps):
        window = windows.push(torch.from_numpy(poles.seen()).float())
        with torch.no_grad():
            plan = planner.encoder(window)
        if step >= WINDOW:
            plans.append(plan.numpy().astype(np.float64))
            seen.append(poles.seen())
            hidden.append((poles.state / SCALES)[:, [1, 3]])
        moved = poles.step(act(window)[0].numpy())
        windows.end(torch.from_numpy(moved.terminated | moved.truncated))
    return np.concatenate(plans), np.concatenate(seen), np.concatenate(hidden)


def probe(inputs: Array, wanted: Array, others: Array) -> Array:
    """A linear least-squares fit of `wanted` by `inputs`, and its predictions for `others`."""
    ones = np.ones((len(inputs), 1))
    found, *_ = np.linalg.lstsq(np.hstack([inputs, ones]), wanted, rcond=None)
    return np.asarray(np.hstack([others, np.ones((len(others), 1))]) @ found)


def explained(predicted: Array, truth: Array) -> float:
    """R^2 over all columns."""
    return float(1 - ((predicted - truth) ** 2).sum() / ((truth - truth.mean(0)) ** 2).sum())


def searches(horizon: int, length: int) -> list[tuple[int, float, float, int, int]]:
    """For each number of branches: the best and the mean score over 10 prefixes, and the prompt tokens that were computed and shared."""
    model = Model.random(ModelConfig("gpt2", vocab=64, layers=2, heads=2, width=32, inner=64, context=length + horizon), scale=0.3)
    rng, found = random.Random(0), []
    prefixes = [[rng.randrange(64) for _ in range(length)] for _ in range(10)]
    torch.manual_seed(0)
    config = PlanningConfig(embedding_dim=32, layers=1, heads=2)
    for branches in (1, 2, 4, 8, 16, 32):
        engine = Engine(model, slots=32, room=horizon)
        planner = LatentPlanningOptimizer(32, 2, config, engine=engine, score=lambda prefix, tokens: float(len(set(tokens))))
        plans = [planner.plan(prefix, branches, horizon, seed=1000 * i) for i, prefix in enumerate(prefixes)]
        mean = float(np.mean([branch.score for plan in plans for branch in plan.branches]))
        shared = sum(plan.reused_tokens for plan in plans)
        asked = len(prefixes) * branches * (length - 1)
        found.append((branches, float(np.mean([plan.best.score for plan in plans])), mean, asked - shared, shared))
    return found


def draw(truth: Array, predicted: dict[str, Array], found: list[tuple[int, float, float, int, int]], path: str) -> None:
    """Left: the probe's predictions of the angular velocity. Right: the best score by the number of branches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for name, values in predicted.items():
        shown = explained(values[:, [1]], truth[:, [1]])  # of the velocity that is drawn
        left.scatter(truth[:, 1], values[:, 1], s=3, alpha=0.4, label=f"from the {name}: R^2 {shown:.2f}")
    left.set(title="a hidden number, by a linear probe", xlabel="angular velocity (scaled)", ylabel="predicted")
    left.legend(markerscale=4)
    branches, best, mean, computed, shared = zip(*found, strict=True)
    right.plot(branches, best, marker="o", label="best branch, which the plan encodes")
    right.plot(branches, mean, marker="o", label="mean of the branches")
    right.set(title="search on the engine", xlabel="branches", ylabel="different tokens of a continuation", xscale="log", xticks=branches, xticklabels=branches)
    for b, top, c, s in zip(branches, best, computed, shared, strict=True):
        right.annotate(f"{s / (c + s):.0%} shared", (b, top), textcoords="offset points", xytext=(6, -12), fontsize=8)
    right.legend(loc="upper left")
    right.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Trains, probes and searches."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--updates", type=int, default=15, help=f"each of {STEPS * COUNT} steps")
    parser.add_argument("--plot", help="a picture; needs matplotlib")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ppo = learner("plan + KL", 2, seed=0)
    curve = train_with(ppo, TASKS["CartPole without velocities"], seed=0, updates=options.updates)["curve"]
    print(f"CartPole without velocities: episodes of {curve[0]:.0f} steps in the first update, {curve[-1]:.0f} in the last of {options.updates}")
    ppo.policy.eval()
    fitted, tested = (recorded(ppo.policy, ppo.act, seed, 200) for seed in (100, 200))
    predicted = {name: probe(fitted[i], fitted[2], tested[i]) for i, name in ((0, "plan"), (1, "state"))}
    for name, values in predicted.items():
        print(f"hidden velocities from the {name}: R^2 {explained(values, tested[2]):.3f} on {len(values)} states that the probe has not seen")
    found = searches(horizon=24, length=128)
    for branches, best, mean, computed, shared in found:
        print(f"{branches:3} branches: best score {best:5.2f}, mean {mean:5.2f}; {computed} prompt tokens computed, {shared} shared")
    if options.plot:
        draw(tested[2], predicted, found, options.plot)


if __name__ == "__main__":
    main()

"""Does a latent plan help? PPO on CartPole with and without one, several seeds, the same steps for each.

    python planning_ablation.py --seeds 5 --plot planning.png --result planning.json

Four policies see the same window of 8 states, and differ in what they make of it:

- state: the last state only, without a plan.
- window: all states side by side, without a plan.
- plan: the last state and the plan, without the temporal divergence.
- plan + KL: the same with it; `kl_weight` is the default.

Two tasks: CartPole as it is, where the last state says all, and CartPole without velocities, which only several states together tell.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cartpole import CartPoles
from torch import Tensor, nn

from echo_rl.core import PlanningConfig, PPOConfig
from echo_rl.core.latent_planning import LatentPlanningOptimizer, PolicyNetwork, StateWindows
from echo_rl.core.ppo_learner import PPOLearner

WINDOW, COUNT, STEPS = 8, 16, 128
TASKS = {"CartPole": True, "CartPole without velocities": False}
ARMS = ("state", "window", "plan", "plan + KL")


class Unplanned(nn.Module):
    """A policy of the last state, or of all states of the window side by side."""

    def __init__(self, state_dim: int, whole: bool) -> None:
        super().__init__()
        self.whole = whole
        self.policy = PolicyNetwork(state_dim * (WINDOW if whole else 1), 2, 1, width=64)

    def forward(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (n, 2) and values (n,) of windows (n, k, state_dim)."""
        found: tuple[Tensor, Tensor] = self.policy(windows.flatten(1) if self.whole else windows[:, -1])
        return found


def learner(arm: str, state_dim: int, seed: int) -> PPOLearner:
    """A learner of one of `ARMS`."""
    torch.manual_seed(seed)
    config = PPOConfig(learning_rate=1e-3, kl_coef=0.0, seed=seed)
    if not arm.startswith("plan"):
        return PPOLearner(Unplanned(state_dim, arm == "window"), config)
    weight = {"kl_weight": 0.0} if arm == "plan" else {}
    shape = PlanningConfig(embedding_dim=32, layers=1, heads=2, state_window_size=WINDOW, learning_rate=1e-3, **weight)
    planner = LatentPlanningOptimizer(state_dim, 2, shape, width=64)
    return PPOLearner(planner, config, auxiliary=planner.auxiliary_loss, groups=planner.groups())


def train(arm: str, velocities: bool, seed: int, updates: int) -> dict[str, Any]:
    """Trains one of `ARMS`, see `train_with`."""
    return train_with(learner(arm, 4 if velocities else 2, seed), velocities, seed, updates)


def train_with(ppo: PPOLearner, velocities: bool, seed: int, updates: int) -> dict[str, Any]:
    """Returns the mean length of the episodes that ended in each update's rollout, and how large the divergence was beside the loss."""
    state_dim, poles = 4 if velocities else 2, CartPoles(COUNT, seed, velocities)
    windows = StateWindows(COUNT, WINDOW, state_dim)
    curve, shares, last = [], [], 0.0
    begin = time.process_time()
    for _ in range(updates):
        steps: list[dict[str, Any]] = []
        ended: list[int] = []
        for _ in range(STEPS):
            seen = windows.push(torch.from_numpy(poles.seen()).float())
            actions, log_probs, _ = ppo.act(seen)
            step = poles.step(actions.numpy())
            following = windows.followed_by(torch.from_numpy(step.states).float())
            windows.end(torch.from_numpy(step.terminated | step.truncated))
            steps.append({"states": seen, "actions": actions, "log_probs": log_probs, "next_states": following})
            # Rewards of 0.1 keep values near 10 at most.
            steps[-1] |= {"rewards": torch.full((COUNT,), 0.1)}
            steps[-1] |= {"terminated": torch.from_numpy(step.terminated), "truncated": torch.from_numpy(step.truncated)}
            ended += step.returns
        metrics = ppo.update({name: torch.stack([one[name] for one in steps]) for name in steps[0]})
        last = float(np.mean(ended)) if ended else last
        curve.append(round(last, 2))
        shares.append(metrics.auxiliary_loss / (metrics.auxiliary_loss + abs(metrics.policy_loss) + 0.5 * metrics.value_loss))
    return {"curve": curve, "divergence_share": round(float(np.mean(shares)), 5), "cpu_seconds": round(time.process_time() - begin, 2)}


def interval(values: list[float]) -> tuple[float, float]:
    """The mean and half of its 95 % interval, by Student's t for 2 to 10 values."""
    quantiles = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]
    if not 2 <= len(values) <= 10:
        raise ValueError(f"an interval needs 2 to 10 seeds, got {len(values)}")
    return float(np.mean(values)), quantiles[len(values) - 2] * float(np.std(values, ddof=1)) / len(values) ** 0.5


def report(runs: dict[str, dict[str, list[dict[str, Any]]]], updates: int) -> None:
    """Prints each arm's mean over all episodes' ends and over the last tenth, and the paired difference of a plan and no plan."""
    tail = max(1, updates // 10)
    for task, arms in runs.items():
        print(f"{task}: length of episodes, mean and 95 % interval over {len(arms['state'])} seeds, {updates * STEPS * COUNT} steps each")
        whole = {arm: [float(np.mean(run["curve"])) for run in found] for arm, found in arms.items()}
        final = {arm: [float(np.mean(run["curve"][-tail:])) for run in found] for arm, found in arms.items()}
        for arm, found in arms.items():
            over, end = interval(whole[arm]), interval(final[arm])
            share, seconds = (float(np.mean([run[name] for run in found])) for name in ("divergence_share", "cpu_seconds"))
            print(f"  {arm:10} whole run {over[0]:6.1f} +- {over[1]:5.1f}   last tenth {end[0]:6.1f} +- {end[1]:5.1f}   "
                  f"divergence {share:6.2%} of the loss   {seconds:5.1f} CPU s")  # fmt: skip
        for one, other in (("plan + KL", "state"), ("plan + KL", "window"), ("plan + KL", "plan")):
            mean, half = interval([a - b for a, b in zip(whole[one], whole[other], strict=True)])
            print(f"  {one} minus {other}, whole run, paired by seed: {mean:+.1f} +- {half:.1f}")


def draw(runs: dict[str, dict[str, list[dict[str, Any]]]], path: str) -> None:
    """A panel for each task: the mean over seeds as a line, and the least and the greatest as a band."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(runs), figsize=(11, 4), sharey=True)
    for axis, (task, arms) in zip(axes, runs.items(), strict=True):
        for arm, found in arms.items():
            curves = np.array([run["curve"] for run in found])
            steps = STEPS * COUNT * np.arange(1, curves.shape[1] + 1)
            axis.plot(steps, curves.mean(0), label=arm, linewidth=2)
            axis.fill_between(steps, curves.min(0), curves.max(0), alpha=0.12)
        axis.set(title=f"{task}, {len(arms['state'])} seeds", xlabel="steps")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("length of episodes")
    axes[0].legend(loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Trains every arm on both tasks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="2 to 10")
    parser.add_argument("--updates", type=int, default=40, help=f"each of {STEPS * COUNT} steps")
    parser.add_argument("--result", help="a JSON file for all curves")
    parser.add_argument("--plot", help="a picture; needs matplotlib")
    options = parser.parse_args()
    interval([0.0] * options.seeds)  # refuses a wrong number of seeds before the work
    torch.set_num_threads(1)
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    planned = list(itertools.product(TASKS.items(), ARMS, range(options.seeds)))
    begin = time.monotonic()
    for done, ((task, velocities), arm, seed) in enumerate(planned, 1):
        run = train(arm, velocities, seed, options.updates)
        runs.setdefault(task, {}).setdefault(arm, []).append(run)
        passed = time.monotonic() - begin
        left = passed / done * (len(planned) - done)
        what = f"{task}, {arm}, seed {seed}: episodes of {run['curve'][-1]:.0f} steps"
        print(f"{done:3} of {len(planned)}: {what}; {passed:.0f} s, about {left:.0f} s left", flush=True)
    report(runs, options.updates)
    if options.result:
        Path(options.result).write_text(json.dumps({"window": WINDOW, "steps_per_update": STEPS * COUNT, "runs": runs}))
    if options.plot:
        draw(runs, options.plot)


if __name__ == "__main__":
    main()

"""Compare echo_rl's PPO with Stable-Baselines3's on CartPole-v1: the same steps, networks and rules, and several seeds of each.

The rules are Stable-Baselines3's defaults, spread over 8 environments. After the last step, each policy plays 50 episodes and takes its likeliest
action. The interval is Welch's for the difference of two means over seeds.

Run: ``python -m benchmarks.rl.ppo``. It needs gymnasium, scipy and stable-baselines3, and ends with status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from scipy import stats
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from torch import Tensor, nn

from echo_rl.core import PPOConfig
from echo_rl.core.ppo_learner import PPOLearner

NAME, ENVIRONMENTS, LENGTH, EPISODES = "CartPole-v1", 8, 256, 50
Act = Callable[[NDArray[np.float32]], NDArray[np.int64]]


class Policy(nn.Module):
    """The default network of Stable-Baselines3: two layers of 64 for the actions and two for the values, with orthogonal weights."""

    def __init__(self) -> None:
        super().__init__()
        self.actions, self.values = (
            nn.Sequential(_layer(4, 64, 2**0.5), nn.Tanh(), _layer(64, 64, 2**0.5), nn.Tanh(), _layer(64, out, gain)) for out, gain in ((2, 0.01), (1, 1.0))
        )

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (n, 2) and values (n,) of states (n, 4)."""
        return self.actions(states), self.values(states)[:, 0]


def _layer(width: int, out: int, gain: float) -> nn.Linear:
    layer = nn.Linear(width, out)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def environments(count: int) -> SyncVectorEnv:
    """Return environments side by side. One whose episode is over begins the next in the same step."""
    return SyncVectorEnv([lambda: gymnasium.make(NAME)] * count, autoreset_mode=AutoresetMode.SAME_STEP)


def with_echo(steps: int, seed: int) -> Act:
    """Train echo_rl's learner and return its policy."""
    torch.manual_seed(seed)
    # Half the squared error times 1 is Stable-Baselines3's squared error times 0.5.
    config = PPOConfig(epochs=10, minibatch_size=64, entropy_coef=0.0, kl_coef=0.0, value_loss_coef=1.0, seed=seed)
    learner, envs = PPOLearner(Policy(), config), environments(ENVIRONMENTS)
    states, _ = envs.reset(seed=seed)
    for _ in range(-(-steps // (ENVIRONMENTS * LENGTH))):
        rows = []
        for _ in range(LENGTH):
            actions, log_probs, _ = learner.act(states)
            following, rewards, terminated, truncated, found = envs.step(actions.numpy())
            reached = following.copy()  # An episode's last state is not the first one of the next episode.
            for i in np.flatnonzero(terminated | truncated):
                reached[i] = found["final_obs"][i]
            rows.append((states, actions.numpy(), log_probs.numpy(), rewards, reached, terminated, truncated))
            states = following
        names = ("states", "actions", "log_probs", "rewards", "next_states", "terminated", "truncated")
        learner.update(dict(zip(names, map(np.stack, zip(*rows, strict=True)), strict=True)))
    envs.close()
    return lambda batch: learner.act(batch, greedy=True)[0].numpy()


def with_sb3(steps: int, seed: int) -> Act:
    """Train Stable-Baselines3's PPO and return its policy."""
    model = PPO("MlpPolicy", make_vec_env(NAME, ENVIRONMENTS, seed=seed), n_steps=LENGTH, seed=seed, device="cpu").learn(steps)
    return lambda batch: model.predict(batch, deterministic=True)[0]


def evaluate(act: Act, seed: int) -> float:
    """Return the mean sum of rewards of ``EPISODES`` episodes."""
    envs = environments(EPISODES)
    states, _ = envs.reset(seed=10_000 + seed)
    sums, open_ = np.zeros(EPISODES), np.ones(EPISODES, bool)
    while open_.any():
        states, rewards, terminated, truncated, _ = envs.step(act(states))
        sums += rewards * open_
        open_ &= ~(terminated | truncated)
    envs.close()
    return float(sums.mean())


def main() -> int:
    """Print each run's mean reward, the means over the seeds and the interval of their difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {"echo_rl": [], "Stable-Baselines3": []}
    for seed in range(options.seeds):
        for name, train in (("echo_rl", with_echo), ("Stable-Baselines3", with_sb3)):
            begin = time.process_time()
            found[name].append(evaluate(train(options.steps, seed), seed))
            print(f"seed {seed}  {name:18} mean reward {found[name][-1]:6.1f}  ({time.process_time() - begin:.0f} CPU seconds)", flush=True)
    ours, theirs = found.values()
    for name, values in found.items():
        print(f"{name:18} {statistics.mean(values):6.1f} over {len(values)} seeds ({min(values):.1f} .. {max(values):.1f})")
    difference, ratio = statistics.mean(ours) - statistics.mean(theirs), statistics.mean(ours) / statistics.mean(theirs)
    low = high = difference
    if options.seeds > 1 and len({*ours, *theirs}) > 1:
        low, high = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    print(f"echo_rl / Stable-Baselines3: {ratio:.3f}; difference {difference:+.1f}, 95 % interval {low:+.1f} .. {high:+.1f}")
    missed = [bar for bar, met in (("the ratio is below 0.9", ratio >= 0.9), ("the interval is below 0", high >= 0)) if not met]
    print(f"missed: {'; '.join(missed)}" if missed else "both bars are met: a ratio of at least 0.9, and an interval that reaches 0")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())

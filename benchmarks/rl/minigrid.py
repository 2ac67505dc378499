"""How long `EchoRLTrainer` takes to solve MiniGrid-Empty-8x8-v0: until the mean return of 100 episodes is at least 0.9.

    python -m benchmarks.rl.minigrid --seeds 0 1 2

The policy sees the view as numbers and is trained by PPO in this process. The best return possible is 0.961. An evaluation of 20 episodes that reaches 0.9
ends the training; then the policy plays 100 others, whose mean counts. The seconds are those of training and its evaluations, imports excluded. The program
ends with status 1 if a seed does not reach 0.9 within `--limit` seconds. It needs gymnasium and minigrid.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from echo_rl import EchoRLTrainer, TrainingConfig
from echo_rl.core import PPOConfig
from echo_rl.environments import make_environment
from echo_rl.evaluation.statistics import bca_interval
from echo_rl.training.evaluation import EVALUATION_TASKS

ID, TARGET, EPISODES = "MiniGrid-Empty-8x8-v0", 0.9, 100
OPTIONS = {"env_id": ID, "observation": "array"}
RULES = PPOConfig(learning_rate=1e-3, epochs=6, entropy_coef=0.01, kl_coef=0.0)


def train(seed: int, limit: float, steps: int) -> tuple[EchoRLTrainer, float]:
    """Train until an evaluation reaches the target, or for so many seconds or steps."""
    began = time.monotonic()

    def judged(results: dict[str, float]) -> None:
        print(f"  {time.monotonic() - began:6.1f} s  {results['steps']:7.0f} steps  mean return {results['avg_reward']:.3f}", flush=True)
        if results["avg_reward"] >= TARGET:
            trainer.stop()

    def updated(figures: dict[str, Any]) -> None:
        if time.monotonic() - began > limit:
            trainer.stop()

    config = TrainingConfig(
        "minigrid",
        steps,
        learning_starts=0,
        num_actors=16,
        actor_processes=0,
        train_frequency=128,
        batch_size=256,
        evaluation_frequency=8192,
        evaluation_episodes=20,
        eta=0,
        seed=seed,
        env_options=OPTIONS,
        ppo=RULES,
    )
    trainer = EchoRLTrainer(config, on_update=updated, on_evaluation=judged)
    trainer.run()
    return trainer, time.monotonic() - began


def play(trainer: EchoRLTrainer) -> list[float]:
    """The returns of `EPISODES` episodes that no evaluation has played."""
    player, environment, returns = trainer.player(), make_environment("minigrid", **OPTIONS), list[float]()
    for task in range(EPISODES):
        observation, total, over = environment.reset(EVALUATION_TASKS + 1_000_000 + task), 0.0, False
        player.begin()
        while not over:
            found = environment.step(player.act(observation))
            observation, total, over = found.observation, total + found.reward, found.terminated or found.truncated
        returns.append(total)
    environment.close()
    return returns


def main() -> int:
    """Train with each seed, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--limit", type=float, default=180.0, help="seconds")
    parser.add_argument("--steps", type=int, default=400_000, help="at most")
    parser.add_argument("--result", help="a JSON file for all returns")
    given = parser.parse_args()
    missed, runs = 0, []
    for seed in given.seeds:
        trainer, seconds = train(seed, given.limit, given.steps)
        returns = play(trainer)
        mean, (low, high) = sum(returns) / EPISODES, bca_interval(returns)
        reached = mean >= TARGET and seconds <= given.limit
        missed += not reached
        runs.append({"seed": seed, "seconds": seconds, "steps": trainer.metrics.steps, "returns": returns, "evaluations": trainer.metrics.evaluations})
        print(f"seed {seed}: {seconds:.0f} s, {trainer.metrics.steps} steps, mean return of {EPISODES} episodes {mean:.3f} [{low:.3f}, {high:.3f}]: "
              f"{'reached' if reached else 'has not reached'} {TARGET} in {given.limit:.0f} s", flush=True)  # fmt: skip
    if given.result:
        Path(given.result).write_text(json.dumps({"id": ID, "rules": asdict(RULES), "runs": runs}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

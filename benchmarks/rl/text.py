"""Does training a language model beat its own start? A tiny transformer on a text task: 200 tasks before and after training, with each of several seeds.

    python -m benchmarks.rl.text --output-dir results

All episodes are recorded in `episodes.jsonl`, from which the figures are computed: for each seed the share of solved tasks before and after, and over all
seeds a two-sided permutation test whose pairs are the tasks. No task is one of the training's. The program ends with status 1 if a seed is not better than its
start, or if p is at least 0.05. What is recorded already is not played again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import fmean

from echo_rl import EchoRLTrainer, TrainingConfig
from echo_rl.core import ExecutionConfig
from echo_rl.environments import make_environment
from echo_rl.evaluation.episodes import Episode, EpisodesFile
from echo_rl.evaluation.statistics import paired_permutation_test
from echo_rl.rollouts.text_policy import SmallModel
from echo_rl.training.evaluation import EVALUATION_TASKS
from echo_rl.training.metrics import share_interval
from echo_rl.training.token_learner import TokenLearnerConfig
from echo_rl.training.token_losses import TokenLossConfig

TASK, OPTIONS, TASKS = "digits", {"length": 3}, 200
LEARNER = TokenLearnerConfig(TokenLossConfig(entropy_coef=0.02), learning_rate=5e-4, epochs=2, minibatches=4)


def trainer(seed: int, steps: int) -> EchoRLTrainer:
    """A tiny transformer with random weights, trained by GRPO in this process."""
    return EchoRLTrainer(
        TrainingConfig(
            TASK,
            steps,
            learning_starts=0,
            algorithm="grpo",
            num_actors=192,
            actor_processes=0,
            batch_size=512,
            group_size=16,
            eta=0,
            seed=seed,
            evaluation_frequency=10**9,
            evaluation_episodes=1,
            env_options=OPTIONS,
            execution=ExecutionConfig(max_new_tokens=3),
            model=SmallModel(scale=0.1),
            token_learner=LEARNER,
        )
    )


def play(made: EchoRLTrainer, method: str, seed: int, trained: int) -> list[Episode]:
    """The episodes of this seed's tasks, with the likeliest actions."""
    player, environment, found = made.player(), make_environment(TASK, **OPTIONS), list[Episode]()
    for number in range(TASKS):
        task = EVALUATION_TASKS + seed * TASKS + number
        began = time.perf_counter()
        player.begin()
        last = environment.step(player.act(environment.reset(task)))
        seconds, used = time.perf_counter() - began, player.usage
        success = bool(last.info["success"])
        found.append(Episode(TASK, method, seed, number, task, last.reward, success, 1, used.prompt, used.made, used.cached, seconds, 0.0, trained))
    environment.close()
    return found


def report(episodes: list[Episode]) -> int:
    """Print the figures. Return 1 if training has not beaten its start."""
    by = {name: {(e.seed, e.episode): float(bool(e.success)) for e in episodes if e.method == name} for name in ("start", "trained")}
    keys = sorted(by["start"].keys() & by["trained"].keys())
    if not keys:
        return 1
    print(f"{'seed':>6} {'tasks':>6} {'start':>24} {'trained':>24}")
    better = True
    for seed in (*sorted({seed for seed, _ in keys}), None):
        mine = [key for key in keys if seed in (key[0], None)]
        shares = [fmean(by[name][key] for key in mine) for name in ("start", "trained")]
        better = better and shares[1] > shares[0]
        shown = [f"{share:.3f} [{low:.3f}, {high:.3f}]" for share in shares for low, high in [share_interval(round(share * len(mine)), len(mine))]]
        print(f"{'all' if seed is None else seed:>6} {len(mine):6} {shown[0]:>24} {shown[1]:>24}")
    p = paired_permutation_test([by["trained"][key] for key in keys], [by["start"][key] for key in keys])
    print(f"permutation test, {len(keys)} pairs of one task, two-sided: p = {p:.2g}")
    return 0 if better and p < 0.05 else 1


def main() -> int:
    """Train with each seed that is not recorded, and report on all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40_960, help="of each training; each step is one answer")
    parser.add_argument("--output-dir", default="rl_text_results", help="for episodes.jsonl")
    given = parser.parse_args()
    file = EpisodesFile(Path(given.output_dir) / "episodes.jsonl")
    done = {episode.seed for episode in file.read().episodes}
    for seed in given.seeds:
        if seed not in done:
            made = trainer(seed, given.steps)
            start = play(made, "start", seed, 0)
            metrics = made.run()
            file.add(*start, *play(made, "trained", seed, metrics.steps))
            print(f"seed {seed}: {metrics.updates} updates, {metrics.steps} steps in {metrics.seconds:.0f} s", flush=True)
    return report(file.read().episodes)


if __name__ == "__main__":
    sys.exit(main())

"""Train a policy with actors of its own over Echo, and show how it learns.

    python train_echo_rl.py                                                     # sorting digits by GRPO, with 3 actors over TCP
    python train_echo_rl.py --task gym:CartPole-v1                              # classic control by PPO
    python train_echo_rl.py --task alfworld --backbone /models/SmolLM2-135M     # a language model of yours; the environment must be installed
    python train_echo_rl.py --task alfworld --backbone gpt-4o                   # a small policy chooses among what the model proposes; each step costs
    python train_echo_rl.py --config run.toml rl.eta=0                          # the section [rl] of a file, and single fields

Ctrl-C ends the run and its actors. With --output-dir, the same command with --resume goes on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from pathlib import Path
from typing import Any

from echo_core import EchoError
from echo_rl import EchoRLTrainer, TrainingConfig, TrainingMetrics
from echo_rl.backbones import BackboneUnavailable

# What the two small tasks need to be learned within a minute. Options of the command line and the file win over these.
DIGITS: dict[str, Any] = {
    "total_timesteps": 120_000,
    "algorithm": "grpo",
    "batch_size": 512,
    "group_size": 16,
    "num_actors": 192,
    "evaluation_frequency": 5_120,
    "execution": {"max_new_tokens": 3},
    "model": {"scale": 0.1},
    "token_learner": {"learning_rate": 5e-4, "epochs": 2, "minibatches": 4, "loss": {"entropy_coef": 0.02}},
}
CARTPOLE: dict[str, Any] = {
    "total_timesteps": 150_000,
    "algorithm": "ppo",
    "batch_size": 128,
    "num_actors": 6,
    "train_frequency": 64,
    "evaluation_frequency": 10_000,
    "evaluation_episodes": 20,
    "ppo": {"learning_rate": 1e-3, "gamma": 0.98, "gae_lambda": 0.8, "epochs": 10, "entropy_coef": 0.0, "kl_coef": 0.0},
}
PRESETS = {"digits": DIGITS, "gym:CartPole-v1": CARTPOLE}
REACHED = {"digits": ("success_rate", 0.9), "gym:CartPole-v1": ("avg_reward", 475.0)}


def main() -> int:
    """Train, print, draw. Return 1 if a target was not reached, and 2 if nothing was trained: the output says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="rl.FIELD=VALUE", help="single fields of TrainingConfig")
    parser.add_argument("--task", default="digits", help="the environment, such as digits or gym:CartPole-v1")
    parser.add_argument("--backbone", help="the folder of a language model, or the name of one that proposes actions, such as gpt-4o")
    parser.add_argument("--timesteps", type=int, help="actions of all environments together")
    parser.add_argument("--num-actors", type=int, help="environments, or rollouts at most, that run at once")
    parser.add_argument("--actor-processes", type=int, help="processes that make the rollouts (default: 2, or 3 for digits and CartPole; 0: this process)")
    parser.add_argument("--num-learners", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--transport", help="where actors connect, such as tcp://127.0.0.1:0 or shm://run")
    parser.add_argument("--eta", type=int, help="by how many versions rollouts may be older than the policy")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--device", help="auto, cpu or cuda")
    parser.add_argument("--max-steps", type=int, help="the most actions of an episode")
    parser.add_argument("--timeout", type=float, help="the most seconds that the environment may take for a call")
    parser.add_argument("--log-level", type=str.upper, default="WARNING", choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"))
    parser.add_argument("--output-dir", help="for checkpoint.npz and metrics.jsonl")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --output-dir, if there is one")
    parser.add_argument("--config", action="append", default=[], help="a TOML file with a section [rl]")
    parser.add_argument("--whole", action="store_true", help="train for all timesteps, also when the target is reached")
    parser.add_argument("--plot", help="write a picture of the curve to this file (needs matplotlib)")
    given = parser.parse_args()
    if given.plot and not Path(given.plot).resolve().parent.is_dir():
        parser.error(f"--plot: there is no folder {Path(given.plot).resolve().parent}; make it, or name another file")
    logging.basicConfig(level=given.log_level, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        return run(given)
    except EchoError as error:
        missing = isinstance(error.__cause__, BackboneUnavailable | ImportError)  # a key or a package
        print(f"train_echo_rl: {'not run: ' if missing else ''}{error}", file=sys.stderr)
        return 2


def run(given: argparse.Namespace) -> int:
    """Train as the arguments say."""
    actors = 3 if given.task in PRESETS else 2
    preset = {"learning_starts": 0, "actor_processes": actors, "env_name": given.task, **PRESETS.get(given.task, {"total_timesteps": 100_000})}
    names = ("backbone", "num_actors", "actor_processes", "num_learners", "batch_size", "transport", "eta", "seed", "device", "max_steps", "output_dir")
    fields = {f"rl.{name}": getattr(given, name) for name in names if getattr(given, name) is not None}
    fields |= {} if given.timesteps is None else {"rl.total_timesteps": given.timesteps}
    fields |= {} if given.timeout is None else {"rl.execution.timeout": given.timeout}
    config = TrainingConfig.load({"rl": preset}, *given.config, fields, command_line=given.settings)
    metric, target = REACHED.get(config.env_name, ("", 0.0))
    began = time.monotonic()

    def updated(figures: dict[str, Any]) -> None:
        if figures["update"] == 1 or figures["update"] % 10 == 0:
            shown = [f"{name} {figures[name]:.3f}" for name in ("reward", "success_rate", "entropy") if name in figures]
            metrics = trainer.metrics
            print(
                f"{time.monotonic() - began:6.1f} s  update {figures['update']:4d}  {figures['total_steps']:7d} steps  {'  '.join(shown)}  "
                f"lags {dict(sorted(metrics.lags.items()))}  {metrics.throughput:.0f} steps/s  learner waits {100 * metrics.waited:.0f} %",
                flush=True,
            )

    def judged(results: dict[str, float]) -> None:
        name = "success_rate" if "success_rate" in results else "avg_reward"
        print(
            f"{time.monotonic() - began:6.1f} s  evaluation: {name} {results[name]:.3f}, 95 % interval {results[name + '_low']:.3f} to "
            f"{results[name + '_high']:.3f}; {results['episodes']} episodes, {results['timeouts']} timeouts, {results['failures']} failures",
            flush=True,
        )
        if metric and results[metric] > target and not given.whole:
            trainer.stop()

    trainer = EchoRLTrainer(config, on_update=updated, on_evaluation=judged)
    checkpoint = None if config.output_dir is None else Path(config.output_dir) / "checkpoint.npz"
    if given.resume and checkpoint is not None and checkpoint.exists():
        trainer.restore(checkpoint)
        print(f"goes on from {checkpoint}: {trainer.metrics.updates} updates, {trainer.metrics.steps} steps")
    print(f"{config.env_name} by {config.algorithm.upper()}: {config.processes} actors start; the first update comes when they have made a batch", flush=True)
    metrics = asyncio.run(trainer.train())
    print(
        f"{metrics.updates} updates, {metrics.steps} steps, {metrics.episodes} episodes in {metrics.seconds:.1f} s with {config.processes} actors over "
        f"{config.transport.partition(':')[0]}; groups by age in versions {dict(sorted(metrics.lags.items()))}, thrown away {metrics.duplicates}, "
        f"failed {metrics.failed}, actors started again {metrics.restarted}, prefix hit rate {metrics.hit_rate:.2f}"
    )
    if given.plot:
        draw(metrics, config, given.plot)
    reached = not metric or metrics.evaluation_results[metric] > target
    if metric:
        print(f"{metric} {metrics.evaluation_results[metric]:.3f}: {'reached' if reached else 'has not reached'} {target}")
    return 0 if reached else 1


def draw(metrics: TrainingMetrics, config: TrainingConfig, file: str) -> None:
    """Draw the evaluations with their intervals, the reward of each update, and the ages of groups."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), width_ratios=(3, 1), layout="constrained")
    entries = metrics.evaluations
    name, label = ("success_rate", "evaluation: share solved exactly") if "success_rate" in entries[-1] else ("avg_reward", "evaluation: mean return")
    updates = [row for row in metrics.history if "reward" in row]
    left.plot([row["seconds"] for row in updates], [row["reward"] for row in updates], color="tab:gray", alpha=0.6, label="training: mean reward")
    at, values = [entry["seconds"] for entry in entries], [entry[name] for entry in entries]
    low, high = [entry[f"{name}_low"] for entry in entries], [entry[f"{name}_high"] for entry in entries]
    errors = [[v - x for v, x in zip(values, low, strict=True)], [x - v for v, x in zip(values, high, strict=True)]]
    left.errorbar(at, values, errors, marker="o", markersize=3, capsize=2, color="tab:blue", label=f"{label}, 95 % interval")
    left.set(xlabel="seconds of training", title=f"{config.env_name} by {config.algorithm.upper()}, {config.processes} actors", ylim=(0, None))
    left.legend(fontsize=8)
    ages = sorted(metrics.lags)
    right.bar([str(age) for age in ages], [metrics.lags[age] for age in ages], color="tab:blue")
    right.set(xlabel="age in versions", title="groups trained")
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

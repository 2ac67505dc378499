"""What Echo-RL's page claims, measured with echo-rl on this machine: fewer steps by plans, more tokens by shared keys and values, lower cost by replay.

    python -m benchmarks.rl.claims all --output-dir results        # or one of: matrix, engine, plans
    python -m benchmarks.rl.claims report --output-dir results     # the claims, from the recorded episodes

Each part is a benchmark in a folder of its own, and a run goes on with what is missing:

- matrix: three tasks, three baselines, three seeds and 20 episodes each, with a tiny transformer.
- engine: ReAct by the same transformer on DoorKey, with and without the keys and values of earlier calls. It counts what is reused.
- plans: a small policy on a grid of MiniGrid with five seeds: PPO and IMPALA, with and without a latent plan, and with replay.

The transformer has random weights: it solves nothing, but it reads and writes as many tokens as any other of its size. It needs gymnasium, minigrid and bm25s.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from echo_rl.backbones import Completion, CompletionRequest, Prices, register_backbone
from echo_rl.backbones.local import LocalBackbone
from echo_rl.core import PlanningConfig, ReplayConfig
from echo_rl.engine import Engine, Model, ModelConfig
from echo_rl.evaluation.baselines import find_baseline, register_baseline
from echo_rl.evaluation.benchmark import BenchmarkConfig, EchoRLBenchmark
from echo_rl.evaluation.episodes import Episode, EpisodesFile
from echo_rl.evaluation.trained_agents import EchoRLAgent
from echo_rl.training.metrics import mean_interval

GRID = {"minigrid": {"grid_size": 5, "task_type": "navigation"}}
PLAN = vars(PlanningConfig(embedding_dim=32, layers=1, heads=2, state_window_size=4, learning_rate=1e-3))
REPLAY = vars(ReplayConfig(hot_buffer_size=128, cold_buffer_size=384, max_replay_age=20))
IMPALA: dict[str, Any] = {"algorithm": "impala"}
ARMS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "ppo + plan": {"planning": PLAN},
    "impala": IMPALA,
    "impala + replay": {**IMPALA, "replay": REPLAY},
    "impala + plan": {**IMPALA, "planning": PLAN},
    "impala + plan + replay": {**IMPALA, "planning": PLAN, "replay": REPLAY},
}
TRAINING = {"num_actors": 8, "train_frequency": 64, "batch_size": 128, "eta": 0, "ppo": {"learning_rate": 1e-3, "kl_coef": 0.0}}


def tiny(**options: Any) -> LocalBackbone:
    """A transformer of two layers on bytes, with random weights."""
    config = ModelConfig("llama", vocab=260, layers=2, heads=4, width=64, inner=128, context=4096)
    return LocalBackbone(Engine(Model.random(config, scale=0.1), slots=8, room=64, seed=0), name="tiny", prices=Prices({}))


class Forgetful(LocalBackbone):
    """The same, which keeps no keys and values from one call to the next."""

    def complete(self, request: CompletionRequest) -> list[Completion]:
        """See ``Backbone``. A new version of the weights flushes the cache."""
        self.worker.update_weights(self.worker.engine.model, self.worker.engine.version + 1)
        return super().complete(request)


def forgetful(**options: Any) -> LocalBackbone:
    """As ``tiny``, without a cache."""
    made = tiny()
    return Forgetful(made.worker.engine, name="tiny-uncached", prices=Prices({}))


def arm(fields: Mapping[str, Any]) -> type[EchoRLAgent]:
    """An agent whose training has these fields."""

    class Arm(EchoRLAgent):
        fixed = fields

    return Arm


def register() -> None:
    """Give the transformers and the arms of the ablation their names."""
    register_backbone("tiny", tiny)
    register_backbone("tiny-uncached", forgetful)
    for name, fields in ARMS.items():
        register_baseline(f"{name}.", arm(fields), trains=True, options=find_baseline("ppo-rlhf").options, label=f"EchoRLTrainer: {name}")


def parts(folder: Path) -> dict[str, BenchmarkConfig]:
    """The benchmarks."""
    small = {"total_timesteps": 1024, "num_actors": 16, "batch_size": 128, "group_size": 8, "execution": {"max_new_tokens": 8}, "model": {"context": 512}}
    tasks, doors = ["digits", "minigrid", "webshop"], {"minigrid": {"grid_size": 6, "task_type": "key_door"}}
    matrix = BenchmarkConfig(
        tasks,
        ["tiny"],
        ["random", "react", "ppo-rlhf"],
        echo_rl_configs=small,
        task_options=GRID,
        max_steps=5,
        max_tokens=8,
        output_dir=str(folder / "matrix"),
    )
    return {
        "matrix": matrix,
        "engine": BenchmarkConfig(
            ["minigrid"],
            ["tiny", "tiny-uncached"],
            ["react"],
            num_episodes=5,
            task_options=doors,
            max_steps=10,
            max_tokens=16,
            output_dir=str(folder / "engine"),
        ),
        "plans": BenchmarkConfig(
            ["minigrid"],
            [],
            [f"{name}." for name in ARMS],
            num_seeds=5,
            echo_rl_configs={"total_timesteps": 8192, **TRAINING},
            task_options=GRID,
            output_dir=str(folder / "plans"),
        ),
    }


def play(name: str, config: BenchmarkConfig) -> None:
    """Run a part, and keep its time beside its episodes: seconds of the clock and of the processor."""
    began, used = time.monotonic(), time.process_time()

    def done(cell: Any, episodes: int, reason: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {', '.join(map(str, cell))}: {episodes} episodes{f'; not run: {reason}' if reason else ''}", flush=True)

    EchoRLBenchmark(config, on_cell=done).run()
    times = {"seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(time.process_time() - used, 1)}
    file = Path(config.output_dir) / "times.json"
    file.write_text(json.dumps([*(json.loads(file.read_text()) if file.exists() else []), times]) + "\n")
    print(f"{name}: {times}")


def of(folder: Path, part: str) -> dict[str, list[list[Episode]]]:
    """For each method of a part, the episodes of each seed."""
    found: dict[str, list[list[Episode]]] = {}
    for (_, method, _), episodes in sorted(EpisodesFile(folder / part / "episodes.jsonl").read().cells().items()):
        found.setdefault(method.rstrip("."), []).append([e for e in episodes if not e.fault])
    return found


def change(new: list[float], old: list[float]) -> str:
    """The change of a mean in per cent, from pairs of seeds, with the 95 % t interval of the differences in per cent of the old mean."""
    base = fmean(old)
    low, high = mean_interval([a - b for a, b in zip(new, old, strict=True)])
    return f"{100 * (fmean(new) / base - 1):+.0f} % [{100 * low / base:+.0f}, {100 * high / base:+.0f}]"


def report(folder: Path) -> None:
    """Print what the episodes say of each claim."""
    plans = of(folder, "plans")
    steps = {arm: [fmean(e.steps for e in seed) for seed in seeds] for arm, seeds in plans.items()}
    print("| method | seeds | success@1 | return | steps of an episode | steps of training and playing for each success |\n|---|---|---|---|---|---|")
    costs: dict[str, list[float]] = {}
    for name in ARMS:
        if name not in plans:
            continue
        seeds = plans[name]
        solved = [fmean(bool(e.success) for e in seed) for seed in seeds]
        costs[name] = [((seed[0].trained_steps or 0) + sum(e.steps for e in seed)) / max(1, sum(bool(e.success) for e in seed)) for seed in seeds]
        shown = [f"{fmean(v):.{n}f} [{low:.{n}f}, {high:.{n}f}]" for v, n in
                 ((solved, 2), ([fmean(e.reward for e in seed) for seed in seeds], 2), (steps[name], 1), (costs[name], 0))
                 for low, high in [mean_interval(v)]]  # fmt: skip
        print(f"| {name} | {len(seeds)} | {' | '.join(shown)} |")
    for new, old in (("ppo + plan", "ppo"), ("impala + plan", "impala"), ("impala + plan + replay", "impala + replay")):
        if new in steps and old in steps:
            print(f"steps of an episode, {new} against {old}: {change(steps[new], steps[old])}")
    for new, old in (("impala + replay", "impala"), ("impala + plan + replay", "impala + plan")):
        if new in costs and old in costs:
            print(f"cost of a success in steps, {new} against {old}: {change(costs[new], costs[old])}")
    engine = of(folder, "engine")
    if len(engine) == 2:
        rates = {m: [sum(e.tokens for e in seed) / sum(e.seconds for e in seed) for seed in seeds] for m, seeds in engine.items()}
        # A run that is not complete has fewer seeds of the method that comes last.
        ratio = [a / b for a, b in zip(rates["react@tiny"], rates["react@tiny-uncached"], strict=False)]
        low, high = mean_interval(ratio)
        print(f"etps with against without the cache, {len(ratio)} seeds: {fmean(ratio):.2f} x [{low:.2f}, {high:.2f}] "
              f"({fmean(rates['react@tiny']):.0f} and {fmean(rates['react@tiny-uncached']):.0f} tokens/s)")  # fmt: skip
        for method, seeds in engine.items():
            read, cached = (sum(getattr(e, field) or 0 for seed in seeds for e in seed) for field in ("prompt_tokens", "cached_tokens"))
            print(f"KV reuse, {method}: {100 * cached / read:.1f} % of {read} tokens of prompts")


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["all", "matrix", "engine", "plans", "report"])
    parser.add_argument("--output-dir", type=Path, default=Path("rl_claims_results"))
    given = parser.parse_args()
    register()
    for name, config in parts(given.output_dir).items():
        if given.what in ("all", name):
            play(name, config)
    if given.what in ("all", "report"):
        report(given.output_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())

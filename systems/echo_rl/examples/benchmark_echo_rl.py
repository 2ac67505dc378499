"""Compare methods on tasks, and report on the recorded episodes.

    python benchmark_echo_rl.py                                                   # random actions and the oracle on three tasks
    python benchmark_echo_rl.py --tasks webshop cruxeval --backbones local:FOLDER --baselines random react tot
    python benchmark_echo_rl.py --tasks minigrid --baselines random ppo-rlhf --timesteps 20000 --num-actors 16
    python benchmark_echo_rl.py --import my_tasks --tasks custom_task --baselines custom_baseline      # what my_tasks.py has registered
    python benchmark_echo_rl.py --report-only                                     # compute the report from episodes.jsonl again

Ctrl-C ends the run; the same command goes on with what is not recorded yet. What cannot be run, such as a model whose key is missing, is reported as
"not run" with the reason.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from echo_core import ConfigError, EchoError
from echo_rl.evaluation.benchmark import BenchmarkConfig, EchoRLBenchmark
from echo_rl.evaluation.episodes import Cell
from echo_rl.evaluation.report import Report


def main() -> int:
    """Play, print the report. Return 2 if the arguments are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["minigrid", "webshop", "cruxeval"], help="environments")
    parser.add_argument("--backbones", nargs="+", default=[], help="language models, such as gpt-4o or local:FOLDER")
    parser.add_argument("--baselines", nargs="+", default=["random", "oracle"], help="methods, such as random, oracle, react, tot, ppo-rlhf, echo-rl")
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument("--num-episodes", type=int, default=20, help="of each seed")
    parser.add_argument("--max-steps", type=int, help="the most actions of an episode")
    parser.add_argument("--max-tokens", type=int, default=256, help="the most tokens of one answer of a language model")
    parser.add_argument("--timeout", type=float, default=30.0, help="the most seconds that the environment may take for a call")
    parser.add_argument("--timesteps", type=int, help="of each training")
    parser.add_argument("--num-actors", type=int, help="environments of a training that run at once")
    parser.add_argument("--actor-processes", type=int, help="processes of a training that make its rollouts (default: 0, this process)")
    parser.add_argument("--batch-size", type=int, help="of a training")
    parser.add_argument("--device", help="of a training: auto, cpu or cuda")
    parser.add_argument("--task-options", type=json.loads, default={}, metavar="JSON", help='such as \'{"minigrid": {"grid_size": 6}}\'')
    parser.add_argument("--prices", help="a TOML file with the prices of tokens")
    parser.add_argument("--output-dir", default="benchmark_results", help="for episodes.jsonl and the report")
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="MODULE", help="a module that registers tasks, backbones or baselines")
    parser.add_argument("--report-only", action="store_true", help="play nothing")
    parser.add_argument("--plot", help="write the picture to this file, too (needs matplotlib)")
    parser.add_argument("--log-level", type=str.upper, default="WARNING", choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"))
    given = parser.parse_args()
    if given.plot and not Path(given.plot).resolve().parent.is_dir():
        parser.error(f"--plot: there is no folder {Path(given.plot).resolve().parent}; make it, or name another file")
    logging.basicConfig(level=given.log_level, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        report = run(given)
        print("\n" + report.markdown())
        if given.plot and not report.draw(given.plot):
            print("no picture: matplotlib is not installed, or no episode is recorded")
    except (EchoError, ValueError) as error:
        print(f"benchmark_echo_rl: {error}", file=sys.stderr)
        return 2
    return 0


def run(given: argparse.Namespace) -> Report:
    """Play what the arguments say."""
    if given.report_only:
        report = Report.of(Path(given.output_dir) / "episodes.jsonl")
        report.write(given.output_dir)
        return report
    sys.path.insert(0, "")  # modules of the present folder
    for module in given.imports:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"--import {module}: {error}") from error
    names = {"timesteps": "total_timesteps", "num_actors": "num_actors", "actor_processes": "actor_processes", "batch_size": "batch_size", "device": "device"}
    trainer: dict[str, Any] = {name: getattr(given, argument) for argument, name in names.items() if getattr(given, argument) is not None}
    if trainer and given.imports:
        trainer["imports"] = given.imports  # actors are programs of their own, which have to know the tasks, too
    config = BenchmarkConfig(
        tasks=given.tasks,
        backbones=given.backbones,
        baselines=given.baselines,
        num_seeds=given.num_seeds,
        num_episodes=given.num_episodes,
        echo_rl_configs=trainer or None,
        task_options=given.task_options,
        max_steps=given.max_steps,
        max_tokens=given.max_tokens,
        timeout=given.timeout,
        prices=given.prices,
        output_dir=given.output_dir,
    )
    began = time.monotonic()

    def done(cell: Cell, episodes: int, reason: str) -> None:
        print(
            f"{time.monotonic() - began:6.1f} s  {cell[0]}, {cell[1]}, seed {cell[2]}: {episodes} episodes{f'; not run: {reason}' if reason else ''}",
            flush=True,
        )

    return EchoRLBenchmark(config, on_cell=done).run()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

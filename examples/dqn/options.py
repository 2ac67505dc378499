"""The command line of `python -m examples.dqn`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Echo's sampler for each choice of `--sampler`.
SAMPLERS: dict[str, dict[str, Any]] = {
    "uniform": {"type": "uniform"},
    "prioritized": {"type": "prioritized", "alpha": 0.6, "eps": 1e-3},
    "hot_cold": {"type": "hot_cold", "hot_ratio": 0.5, "alpha": 0.6, "eps": 1e-3},
}


@dataclass(frozen=True)
class Options:
    """All options of the job. It can be pickled, because every worker process gets a copy."""

    sampler: str = "prioritized"
    transport: str = "tcp://127.0.0.1:0"
    workers: int = 2
    envs: int = 8  # environments per worker, stepped together
    steps: int = 30_000  # transitions inserted, after which the run ends
    target: float = 450.0  # mean return of an evaluation that counts as learned; 0: play all steps
    seed: int = 0
    metrics_port: int | None = None  # of loopback, where Prometheus finds the figures; None: nowhere
    compare: bool = False
    seeds: int = 5  # seeds of a comparison
    out: Path = Path("out/dqn")
    # Parameters of the table and the learning, the same for every sampler.
    capacity: int = 50_000
    batch: int = 64
    samples_per_insert: float = 64.0
    min_size: int = 1000
    span: int = 5  # steps of a return before it is bootstrapped
    discount: float = 0.995  # a drifting cart leaves the track some 300 steps later, too late to have an effect with a discount of 0.99


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Options from command-line `arguments` (None: those of this process)."""
    defaults = Options()
    parser = argparse.ArgumentParser(
        prog="python -m examples.dqn",
        description="DQN learns CartPole-v1 from a replay table that worker processes fill through Echo.",
        epilog="Exit code: 0 target reached (or none set), 1 not reached, 2 could not run, 130 Ctrl-C.",
    )
    add = parser.add_argument
    add("--sampler", choices=list(SAMPLERS), default=defaults.sampler)
    add("--transport", metavar="ADDRESS", default=defaults.transport, help="default: %(default)s")
    add("--workers", type=_whole, default=defaults.workers, metavar="N")
    add("--envs", type=_whole, default=defaults.envs, metavar="N", help="per worker")
    add("--steps", type=_whole, default=defaults.steps, metavar="N", help="transitions to play (default: %(default)s)")
    add("--target", type=float, default=defaults.target, metavar="RETURN", help="end once an evaluation reaches this mean return; 0: never")
    add("--metrics-port", type=_whole, metavar="PORT", help="serve figures for Prometheus at this port of loopback; it needs echoctl")
    add("--seed", type=int, default=defaults.seed, metavar="N")
    add("--compare", action="store_true", help="run every sampler with several seeds and all steps; saves a plot and the results")
    add("--seeds", type=_whole, default=defaults.seeds, metavar="N", help="seeds of a comparison (default: %(default)s)")
    add("--out", type=Path, default=defaults.out, metavar="DIR", help="folder of a comparison (default: %(default)s)")
    return Options(**vars(parser.parse_args(arguments)))


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value

"""The command line of `python -m examples.cartpole`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """All options of the job. It can be pickled, because every worker process gets a copy."""

    transport: str | None = None  # a name or an address; None: that of the configuration, else tcp
    sampler: str | None = None  # None: that of the configuration, else fifo
    config: Path | None = None
    workers: int = 4
    envs: int = 16  # environments per worker, stepped together
    steps: int = 32  # steps per rollout, which is one sample
    batch: int | None = None  # rollouts per batch; None: that of the configuration, else 64
    seconds: float = 90.0  # the longest the run may take
    target: float = 450.0  # mean return of the last 100 episodes that counts as learned
    hold: float = 10.0  # seconds for which it has to stay there before the run ends
    view: bool = True
    plot: Path | None = Path("out/cartpole.png")
    seed: int = 0
    metrics_port: int | None = None  # of loopback, where Prometheus finds the figures; None: nowhere


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Options from command-line ``arguments`` (None: those of this process)."""
    defaults = Options()
    parser = argparse.ArgumentParser(
        prog="python -m examples.cartpole",
        description="A learner and several worker processes learn CartPole-v1 through Echo.",
        epilog="Exit code: 0 target reached (or none set), 1 not reached in time, "
        "2 could not run, 130 Ctrl-C.",
    )
    add = parser.add_argument
    add("--transport", metavar="NAME|ADDRESS", help="tcp, or tcp://127.0.0.1:5555 (default: tcp)")
    add("--sampler", metavar="NAME", help="an installed streaming sampler (default: fifo)")
    add("--config", type=Path, metavar="FILE", help="an Echo TOML file")
    add("--workers", type=_positive(int), default=defaults.workers, metavar="N")
    add("--envs", type=_positive(int), default=defaults.envs, metavar="N", help="per worker")
    add("--steps", type=_positive(int), default=defaults.steps, metavar="N", help="per rollout")
    add("--batch", type=_positive(int), metavar="N", help="rollouts per batch (default: 64)")
    add(
        "--seconds",
        type=_positive(float),
        default=defaults.seconds,
        metavar="S",
        help="the longest the run may take (default: %(default)g)",
    )
    add(
        "--target",
        type=float,
        default=defaults.target,
        metavar="RETURN",
        help="end once the mean return of the last 100 episodes has stayed above this; "
        "0: run for all of --seconds (default: %(default)g)",
    )
    add(
        "--hold",
        type=float,
        default=defaults.hold,
        metavar="S",
        help="how long it has to stay there (default: %(default)g s)",
    )
    add("--no-view", dest="view", action="store_false", help="plain lines, no live view")
    add("--plot", type=Path, default=defaults.plot, metavar="PATH", help="default: %(default)s")
    add("--no-plot", dest="plot", action="store_const", const=None, help="draw no plot")
    add("--metrics-port", type=_positive(int), metavar="PORT", help="serve figures for Prometheus at this port of loopback; it needs echoctl")
    add("--seed", type=int, default=defaults.seed, metavar="N")
    return Options(**vars(parser.parse_args(arguments)))


def _positive(kind: type) -> type:
    def convert(text: str) -> float:
        value: float = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
        return value

    convert.__name__ = kind.__name__  # argparse names it in its own errors
    return convert  # type: ignore[return-value]

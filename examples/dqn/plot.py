"""Plots a comparison: the returns of each sampler over time, how soon each seed reached the target, and the effective size of batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from .compare import reached
from .job import EVALUATE, Run

COLOURS = {"uniform": "#8c959f", "prioritized": "#0b6bcb", "hot_cold": "#e8890c"}
_FAINT = "#d8dee4"


def save(runs: list[Run], target: float, path: Path) -> None:
    """Draw `runs`, several seeds of several samplers, into a PNG."""
    names = list(dict.fromkeys(run.sampler for run in runs))
    style: dict[Any, Any] = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"}
    with plt.rc_context(style):
        figure, (growth, first, worth) = plt.subplots(1, 3, figsize=(12, 4.8), width_ratios=(1.7, 1.1, 1.1))
        for name in names:
            mine = [run for run in runs if run.sampler == name]
            _band(growth, mine, name, lambda run: run.returns)
            _band(worth, mine, name, lambda run: run.effective)
        growth.axhline(target, color="#57606a", linewidth=0.9, linestyle="--")
        growth.set(title="Greedy return\n(mean of the seeds; band: lowest to highest)", xlabel="transitions",
                   ylabel="return", ylim=(0, 520))  # fmt: skip
        growth.legend(frameon=False, loc="lower right")
        worth.set(title="What a batch of 64\nis worth", ylabel="effective sample size", xlabel="transitions", ylim=(0, None))
        _first(first, runs, names, target)
        for axis in (growth, first, worth):
            axis.grid(axis="y", color=_FAINT, linewidth=0.7, zorder=0)
        for axis in (growth.xaxis, worth.xaxis, first.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value / 1000:g} k")
        seeds = len({run.seed for run in runs})
        title = f"DQN on CartPole-v1 through Echo: {len(names)} samplers, {seeds} seeds each"
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=14)
        figure.tight_layout(rect=(0, 0, 1, 0.97))
        figure.savefig(path, dpi=120)
        plt.close(figure)


def _band(axis: Any, runs: list[Run], name: str, figures: Callable[[Run], list[float]]) -> None:
    """Mean and extremes over the seeds, at the evaluations that all of them have."""
    count = min(len(run.steps) for run in runs)
    at = np.arange(1, count + 1) * EVALUATE
    values: NDArray[Any] = np.array([figures(run)[:count] for run in runs])
    axis.fill_between(at, values.min(axis=0), values.max(axis=0), color=COLOURS[name], alpha=0.13, linewidth=0, zorder=1)
    axis.plot(at, values.mean(axis=0), color=COLOURS[name], linewidth=2, label=name, zorder=2)


def _first(axis: Any, runs: list[Run], names: list[str], target: float) -> None:
    """Draw a dot for each seed. Seeds that never reached the target are hollow and at the top."""
    longest = max(run.steps[-1] for run in runs)
    for at, name in enumerate(names):
        mine = [run for run in runs if run.sampler == name]
        for place, run in enumerate(mine):
            steps = reached(run, target)
            x = at + 0.3 * ((place + 0.5) / len(mine) - 0.5)
            face = COLOURS[name] if steps is not None else "none"
            axis.scatter([x], [longest * 1.06 if steps is None else steps], color=COLOURS[name], facecolor=face, s=44, zorder=2)
        times = [longest * 1.06 if (steps := reached(run, target)) is None else steps for run in mine]
        axis.hlines(np.median(times), at - 0.28, at + 0.28, color=COLOURS[name], linewidth=2, zorder=2)
    axis.set_xticks(range(len(names)), names)
    axis.set(title=f"Transitions until {target:g}\n(line: median; hollow: never)", ylim=(0, longest * 1.12))

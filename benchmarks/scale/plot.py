"""The model as a picture that can be read on a phone: at how many workers each quantity breaks, and what more shards change."""

from __future__ import annotations

from math import isinf
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.plot import style
from benchmarks.report import number
from benchmarks.scale.model import Constants, Job, breaking, first, loads

#: The bars: a key of the model, and a short name.
BARS = {
    "weights-network": "weights straight,\nnetwork",
    "descriptors": "descriptors (ulimit -n)",
    "weights-cpu": "weights straight,\nCPU",
    "connections": "max_connections",
    "memory-full": "memory, server stalls",
    "requests": "single draws, CPU",
    "intake": "one learner takes all,\nnetwork (workers in all)",
    "door": "reconnect, at the door",
    "draws": "learner draws all, CPU",
    "handshakes": "reconnect, CPU",
    "experience-cpu": "experience in, CPU",
    "relays-network": "weights by relays,\nnetwork",
    "idle": "idle, CPU",
}
#: The lines: a key, a short name, and a colour.
LINES = {
    "weights-network": ("weights straight", "#e8890c"),
    "descriptors": ("descriptors", "#9aa3ab"),
    "door": ("reconnect", "#5c9e6f"),
    "intake": ("one learner takes all", "#b3261e"),
    "relays-network": ("weights by relays", "#0b6bcb"),
    "requests": ("single draws", "#7a4fbf"),
}
WORKERS, MOST_SHARDS = 10_000, 100
BLUE, RED = "#0b6bcb", "#b3261e"


def draw(constants: Constants, job: Job, path: Path) -> None:
    """Write the picture as PNG."""
    with plt.rc_context({**style(), "font.size": 14, "axes.titlesize": 16}):
        figure, (bars, lines) = plt.subplots(2, 1, figsize=(7.6, 12.6), height_ratios=(1.35, 1), layout="constrained")
        _bars(bars, constants, job)
        _lines(lines, constants, job)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        plt.close(figure)


def _bars(axis: Axes, constants: Constants, job: Job) -> None:
    found = {key: breaking(constants, job, key) for key in BARS}
    keys = sorted((key for key in BARS if not isinf(found[key])), key=lambda key: -found[key])
    values = [found[key] for key in keys]
    straight = first(loads(constants, job, 10_000, 1), relays=False).key
    axis.barh([BARS[key] for key in keys], values, color=[RED if key == straight else BLUE for key in keys], height=0.68)
    for row, value in enumerate(values):
        axis.text(value * 1.12, row, number(value), va="center", fontweight="bold")
    axis.set(xscale="log", xlim=(100, max(values) * 6), title="Workers on one server, until …")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(axis="y", length=0)


def _lines(axis: Axes, constants: Constants, job: Job) -> None:
    shards = [1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, MOST_SHARDS]
    columns = [{load.key: load.use for load in loads(constants, job, WORKERS, count)} for count in shards]
    for key, (label, colour) in LINES.items():
        axis.plot(shards, [max(column[key], 1e-4) for column in columns], color=colour, linewidth=3, label=label)
    axis.axhline(1, color="#24292f", linewidth=1.5, linestyle="--")
    axis.text(100, 1.12, "limit", ha="right")
    axis.set(xscale="log", yscale="log", xlim=(1, MOST_SHARDS), ylim=(0.003, 100), xlabel="servers (shards)")
    axis.set_title("10 000 workers: load over limit")
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        each.set_minor_formatter(NullFormatter())
    axis.legend(loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=2, frameon=False)

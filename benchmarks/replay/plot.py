"""A result file of replay tables as one picture: logarithmic bars, a rival's with how many times better Echo is."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.plot import FAINT, INK, style
from benchmarks.replay import bars
from benchmarks.replay.cases import short
from benchmarks.replay.items import ITEMS
from benchmarks.report import factor, number
from benchmarks.results import Results

COLOURS = {
    "echo": "#0b6bcb", "echo-remote": "#7cc4f4", "cpprb": "#e8890c", "torchrl": "#c2457f", "reverb": "#5c9e6f", "memcpy": "#9aa3ab",
    "rows": "#c9ced3",
}  # fmt: skip

#: A panel's title and the modes whose cases stand in it.
PANELS = (
    ("Inserts", ("insert", "insert-batch")),
    ("Uniform batches of 256", ("uniform",)),
    ("Prioritized: draw 256 and update them", ("pair", "pair-writer")),
    ("Over TCP, inserts beside a learner", ("tcp-insert",)),
    ("Over TCP, samples at the learner", ("tcp-sample",)),
    ("Memory, less is better", ("memory", "memory-stacks")),
)

#: What stands below a bar's place, besides the items.
LABELS = {
    "insert": "one by one", "insert-batch": "calls of 256", "pair": "alone", "pair-writer": "beside a writer", "memory-stacks": "stacks of 4",
}  # fmt: skip


def draw(results: Results, path: Path) -> None:
    """Write the picture of a result file as PNG. Draws whatever of the panels has figures."""
    panels = [(title, [n for n, c in results.cases.items() if c["mode"] in modes and _any(results, n)]) for title, modes in PANELS]
    panels = [(title, names) for title, names in panels if names]
    rows = max(1, len(panels))  # one below the other: side by side, their letters would be too small to read on a phone
    height = 2.9 * rows + 1.75
    with plt.rc_context(style()):
        figure, axes = plt.subplots(rows, 1, figsize=(5.6, height), squeeze=False)
        for axis, (title, names) in zip(axes.flat, panels, strict=False):
            _panel(axis, results, title, names)
        for axis in list(axes.flat)[len(panels) :]:
            axis.set_visible(False)
        machine = results.content["machine"]
        figure.tight_layout(rect=(0, 0, 1, 1 - 1.7 / height), h_pad=2.0)
        figure.suptitle("Replay tables: Echo and alternatives", x=0.02, y=1 - 0.16 / height, ha="left", va="top", fontsize=14, fontweight="bold")
        about = f"{machine['cpu']}, {machine['cores']} cores · Python {machine['python']}"
        signs = "medians, lines span the quartiles\n× says how many times better Echo is"
        figure.text(0.02, 1 - 0.5 / height, f"{about}\n{signs}", va="top", fontsize=9.5, color="#57606a")
        handles = [Rectangle((0, 0), 1, 1, fc=COLOURS[s], ec="white") for s in results.systems]
        labels = [s if s in ("memcpy", "rows", "echo-remote") else f"{s} {results.content['systems'][s]}" for s in results.systems]
        if handles:
            figure.legend(handles, labels, loc="upper left", ncols=min(4, len(handles)), frameon=False, fontsize=9.5,
                          columnspacing=1.0, handlelength=1.2, bbox_to_anchor=(0.003, 1 - 1.1 / height))  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        plt.close(figure)


def _any(results: Results, case: str) -> bool:
    return any(results.main_figure(case, system) for system in results.systems)


def _panel(axis: Axes, results: Results, title: str, names: list[str]) -> None:
    top: list[float] = []
    low: list[float] = []
    for at, name in enumerate(names):
        shown = [(system, figure) for system in results.systems if (figure := results.main_figure(name, system))]
        width = 0.8 / max(4, len(shown))
        for place, (system, figure) in enumerate(shown):
            x = at + (place - (len(shown) - 1) / 2) * width
            axis.bar(x, figure.median, width * 0.92, color=COLOURS[system], zorder=2)
            axis.vlines(x, figure.q1, figure.q3, color=INK, linewidth=0.9, zorder=3)
            top.append(figure.q3)
            low.append(figure.median)
            ratio = bars.times(results, name, system)
            text = number(figure.median) if system == bars.OURS or ratio is None else factor(ratio)
            axis.annotate(text, (x, figure.q3), (0, 3), textcoords="offset points", ha="center", fontsize=9 if len(names) < 4 else 8, color=INK,
                          fontweight="bold" if system == bars.OURS else None, zorder=4)  # fmt: skip
    axis.set_xticks(range(len(names)), [_label(results, name) for name in names], fontsize=9.5)
    axis.set_title(title)
    axis.set_ylabel(results.metric(names[0]).unit, fontsize=9.5)
    axis.set_yscale("log")
    axis.set_ylim(min(low) / 4, max(top) * 3)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(axis="y", color=FAINT, linewidth=0.7, zorder=0)
    axis.tick_params(which="both", length=0)


def _label(results: Results, case: str) -> str:
    c = results.cases[case]
    first = LABELS.get(c["mode"], "")
    second = f"{ITEMS[c['payload']].title}, {short(c['capacity'])}"
    if c["mode"].startswith("tcp"):
        first = f"{c['workers']} workers" if c["workers"] else "no worker"
    return "\n".join(filter(None, (first, second)))

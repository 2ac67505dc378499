"""A result file as one picture: grouped bars on logarithmic axes, Echo's with their ratios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks import bars
from benchmarks.payloads import PAYLOADS
from benchmarks.report import factor, number
from benchmarks.results import Results, Spread

INK, FAINT = "#24292f", "#d8dee4"


@dataclass(frozen=True)
class Series:
    """One colour of bars: a system, in a case's own mode or in its batched variant."""

    label: str
    system: str
    colour: str
    batched: bool = False


SERIES = (
    Series("echo, batches of 64", "echo", "#7cc4f4", batched=True),
    Series("echo", "echo", "#0b6bcb"),
    Series("id-echo", "id-echo", "#e8890c"),
    Series("pyzmq", "pyzmq", "#5c9e6f"),
    Series("grpcio", "grpcio", "#9aa3ab"),
)
BATCHED = {"tcp": "tcp-batch", "inproc-2t": "inproc-batch-2t"}


@dataclass(frozen=True)
class Group:
    """The bars that stand together over one label of the x axis."""

    label: str
    case: str


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    groups: list[Group]
    more_is_better: bool
    draw: Callable[[Axes, Results, Panel], None]


def draw(results: Results, path: Path) -> None:
    """Write the picture of a result file as PNG. Draws whatever of the panels has figures."""
    panels = _panels(results)
    columns = min(3, max(1, len(panels)))
    rows = -(-max(1, len(panels)) // columns)
    with plt.rc_context(style()):
        figure, axes = plt.subplots(rows, columns, figsize=(5.4 * columns, 3.7 * rows + 0.9), squeeze=False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            panel.draw(axis, results, panel)
        for axis in list(axes.flat)[len(panels) :]:
            axis.set_visible(False)
        _decorate(figure, results, 3.7 * rows + 0.9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        plt.close(figure)


def style() -> dict[Any, Any]:
    return {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "xtick.color": INK,
        "ytick.color": "#57606a",
        "hatch.linewidth": 0.6,
    }


def _panels(results: Results) -> list[Panel]:
    """The panels for which the file has cases, in reading order."""

    def groups(mode: str, workers: int | None = None, suffix: str = "") -> list[Group]:
        return [
            Group(PAYLOADS[case["payload"]].title + suffix, name)
            for name, case in results.cases.items()
            if case["mode"] == mode and workers in (None, case["workers"])
        ]

    panels = [
        Panel(
            f"TCP, {workers} worker process{'es' * (workers > 1)}",
            "samples/s",
            groups("tcp", workers),
            True,
            _rates,
        )
        for workers in (1, 4, 16)
    ]
    panels.append(
        Panel(
            "In-process, one and two threads",
            "samples/s",
            groups("inproc", suffix="\n1 thread") + groups("inproc-2t", suffix="\n2 threads"),
            True,
            _rates,
        )
    )
    calls = groups("ready", suffix="\nsample()") + groups("submit", suffix="\nsubmit()")
    panels.append(Panel("Cost of one call", "µs", calls, False, _rates))
    panels.append(Panel("Latency of single samples, idle link", "µs", groups("latency"), False, _latency))
    return [panel for panel in panels if panel.groups]


def _rates(axis: Axes, results: Results, panel: Panel) -> None:
    """Grouped bars with their quartiles; Echo's carry the ratio to id-echo."""
    width = 0.8 / len(SERIES)
    top: list[float] = []
    for at, group in enumerate(panel.groups):
        shown = [(s, *_figure(results, group, s)) for s in SERIES]
        shown = [(series, figure, case) for series, figure, case in shown if figure]
        for place, (series, figure, case) in enumerate(shown):
            assert figure is not None
            x = at + (place - (len(shown) - 1) / 2) * width
            _bar(axis, x, width, figure, series)
            top.append(figure.q3)
            times = bars.ratio(results, case, series.system)
            if series.system == bars.OURS and times is not None:
                axis.annotate(
                    factor(times),
                    (x, figure.q3),
                    (0, 3),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7.5,
                    fontweight="bold",
                    color="#2b8ccf" if series.batched else series.colour,
                    path_effects=[withStroke(linewidth=2, foreground="white")],
                    zorder=4,
                )
    axis.set_xticks(range(len(panel.groups)), [group.label for group in panel.groups], fontsize=8)
    _scale(axis, panel, top)


def _figure(results: Results, group: Group, series: Series) -> tuple[Spread | None, str]:
    """The figure of a series in a group, and the case it is from."""
    case = group.case
    if series.batched:
        mode, _, rest = case.partition("/")
        case = f"{BATCHED.get(mode, '')}/{rest}"
        if case not in results.cases:
            return None, case
    return results.main_figure(case, series.system), case


def _bar(axis: Axes, x: float, width: float, figure: Spread, series: Series) -> None:
    axis.bar(
        x,
        figure.median,
        width * 0.92,
        color=series.colour,
        zorder=2,
        hatch="////" if series.batched else None,
        edgecolor="white",
        linewidth=0,
    )
    axis.vlines(x, figure.q1, figure.q3, color=INK, linewidth=0.9, zorder=3)


def _latency(axis: Axes, results: Results, panel: Panel) -> None:
    """Horizontal bars to the p50 with a whisker to the p99."""
    case, top = panel.groups[0].case, []
    shown = [s for s in SERIES if not s.batched and results.figure(case, s.system, "p50_us")]
    for at, series in enumerate(reversed(shown)):
        p50 = results.figure(case, series.system, "p50_us")
        p99 = results.figure(case, series.system, "p99_us")
        assert p50 is not None and p99 is not None
        axis.barh(at, p50.median, 0.55, color=series.colour, zorder=2)
        axis.plot([p50.median, p99.median], [at, at], color=series.colour, lw=2, zorder=2)
        axis.plot([p99.median], [at], "|", color=series.colour, ms=13, mew=2.2, zorder=3)
        axis.annotate(
            f"{p50.median:.0f} µs, p99 {p99.median:.0f}",
            (p99.median, at),
            (8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
        top.append(p99.median)
    axis.set_yticks(range(len(shown)), [s.label for s in reversed(shown)])
    axis.set_xlim(0, 1.45 * max(top, default=1.0))
    axis.set_title(f"{panel.title} ({panel.unit}, p50 bar, p99 mark)")
    axis.grid(axis="x", color=FAINT, linewidth=0.7, zorder=0)
    axis.tick_params(length=0)


def _scale(axis: Axes, panel: Panel, top: list[float]) -> None:
    arrow = "more is better" if panel.more_is_better else "less is better"
    axis.set_title(f"{panel.title}")
    axis.set_ylabel(f"{panel.unit}, {arrow}", fontsize=8)
    axis.set_yscale("log")
    if top:
        axis.set_ylim(min(top) / 4, max(top) * 2.5)
    axis.yaxis.set_major_locator(LogLocator(numticks=12))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(axis="y", color=FAINT, linewidth=0.7, zorder=0)
    axis.tick_params(which="both", length=0)
    axis.margins(x=0.02)


def _decorate(figure: Figure, results: Results, height: float) -> None:
    machine, revision = results.content["machine"], results.content["git"]["revision"]
    used = [s for s in SERIES if s.system in results.systems]
    handles = [Rectangle((0, 0), 1, 1, fc=s.colour, ec="white", hatch="////" if s.batched else None) for s in used]
    labels = []
    for series in used:
        version = results.content["systems"][series.system]
        labels.append(series.label if series.batched else f"{series.label} {version}")
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.85 / height), h_pad=2.2, w_pad=2.0)
    figure.suptitle(
        "Experience transport: Echo and what one would use otherwise",
        x=0.012, y=1 - 0.16 / height, ha="left", va="top", fontsize=14, fontweight="bold",
    )  # fmt: skip
    figure.text(
        0.012,
        1 - 0.5 / height,
        f"{machine['cpu']}, {machine['cores']} cores · Python {machine['python']} · revision "
        f"{(revision or 'unknown')[:10]} · medians, lines span the quartiles · × over id-echo",
        va="top",
        fontsize=8.5,
        color="#57606a",
    )
    if handles:
        figure.legend(
            handles, labels, loc="upper right", ncols=len(handles), frameon=False,
            fontsize=8.5, bbox_to_anchor=(0.995, 1 - 0.05 / height),
        )  # fmt: skip

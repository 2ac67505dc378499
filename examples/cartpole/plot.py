"""Draws the plot that is saved at the end: returns, throughput and policy lag over wall time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .monitor import EPISODES, Monitor
from .options import Options

_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY = "#2563eb", "#ea580c", "#059669", "#7c3aed", "#94a3b8"
_RED = "#dc2626"
_DOTS = 20_000  # the most episodes to draw; more would add nothing visible


def save(monitor: Monitor, options: Options) -> None:
    """Draw ``monitor``'s history into the PNG ``options.plot``; its folder is made if necessary."""
    # Figure is used without pyplot, so there is no window system, no global state, and nothing to close.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    assert options.plot is not None
    history = monitor.history
    time = np.array(history.time)
    figure = Figure(figsize=(10, 8), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    top, middle, bottom = figure.subplots(
        3, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1.2, 1.2]}
    )
    _returns(top, monitor, options)
    _throughput(middle, monitor, time)
    _lag(bottom, monitor, time)
    bottom.set_xlabel("wall time (s)")
    bottom.set_xlim(0, max(1.0, monitor.elapsed if not len(time) else float(time[-1])))
    for axes in (top, middle, bottom):
        axes.grid(color="#e2e8f0", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        for at, what in history.events:
            if " died" in what:
                axes.axvline(at, color=_RED, linewidth=1, linestyle=":")
                if axes is top:
                    axes.annotate(
                        what,
                        (at, 4),
                        xytext=(-3, 0),
                        textcoords="offset points",
                        fontsize=8,
                        rotation=90,
                        ha="right",
                        va="bottom",
                        color=_RED,
                        bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
                    )
    figure.suptitle(
        f"CartPole-v1 through Echo: {options.workers} workers x {options.envs} environments, "
        f"seed {options.seed}",
        fontsize=13,
        fontweight="bold",
    )
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.plot, dpi=120)


def _returns(axes: Any, monitor: Monitor, options: Options) -> None:
    history = monitor.history
    if history.episode_time:
        at = np.concatenate(history.episode_time)
        returns = np.concatenate(history.episode_return)
        rng = np.random.default_rng(0)
        if len(at) > _DOTS:
            pick = rng.choice(len(at), _DOTS, replace=False)
            at, returns = at[pick], returns[pick]
        axes.scatter(
            at,
            returns,
            s=4,
            color=_GREY,
            alpha=0.4,
            linewidths=0,
            rasterized=True,
            label="episodes",
        )
    axes.plot(
        history.batch_time,
        history.mean_return,
        color=_BLUE,
        linewidth=2.2,
        label=f"mean of the last {EPISODES}",
    )
    if options.target > 0:
        axes.axhline(options.target, color=_ORANGE, linewidth=1.2, linestyle="--")
        axes.annotate(
            f"target {options.target:g}",
            (1, options.target),
            xycoords=("axes fraction", "data"),
            xytext=(-4, -12),
            textcoords="offset points",
            ha="right",
            color=_ORANGE,
            fontsize=9,
        )
    if monitor.first_reached is not None:
        axes.plot(
            [monitor.first_reached], [options.target], "o", color=_ORANGE, markersize=7, zorder=5
        )
        axes.annotate(
            f"{monitor.first_reached:.1f} s",
            (monitor.first_reached, options.target),
            xytext=(8, -16),
            textcoords="offset points",
            color=_ORANGE,
            fontweight="bold",
        )
    axes.set_ylim(0, 520)
    axes.set_ylabel("episode return")
    legend = axes.legend(loc="lower right", frameon=False, markerscale=3)
    for handle in legend.legend_handles:
        handle.set_alpha(1)


def _throughput(axes: Any, monitor: Monitor, time: NDArray[Any]) -> None:
    history = monitor.history
    rate = np.array(history.learned_per_s)
    axes.fill_between(time, rate, color=_GREEN, alpha=0.15, linewidth=0)
    axes.plot(time, rate, color=_GREEN, linewidth=1.5)
    axes.set_ylim(0, 1.15 * max(1.0, float(rate.max(initial=0.0))))
    axes.set_ylabel("samples learned/s")
    megabytes = monitor.sample_bytes / 1e6
    right = axes.secondary_yaxis(
        "right", functions=(lambda x: x * megabytes, lambda x: x / megabytes)
    )
    right.set_ylabel("MB/s")
    right.spines["right"].set_visible(False)


def _lag(axes: Any, monitor: Monitor, time: NDArray[Any]) -> None:
    lag = np.array(monitor.history.lag)
    axes.plot(time, lag, color=_PURPLE, linewidth=1.5)
    top = float(np.nanmax(lag)) if np.isfinite(lag).any() else 1.0
    axes.set_ylim(0, 1.15 * max(1.0, top))
    axes.set_ylabel("policy lag\n(versions)")

"""A picture of a run: the rewards of every epoch, and what happened meanwhile. It needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from echo_core import ConfigError

__all__ = ["plot_learning"]

_INK, _BLUE, _GREEN, _GREY, _FAINT = "#24292f", "#0b6bcb", "#5c9e6f", "#9aa3ab", "#d8dee4"


def plot_learning(
    rewards: Sequence[ArrayLike],
    path: str | Path,
    *,
    centre: Mapping[int, float] | None = None,
    events: Mapping[int, str] | None = None,
    title: str = "",
) -> None:
    """Draw into the file `path` (.png, .svg, ...) the mean of each epoch's rewards, shape (population,), their 10 % to 90 % range, and the best.

    `centre` are rewards of the centre itself, and `events` short texts, both by epoch. Rewards that are NaN or infinite are left out.
    Raises ConfigError if matplotlib is not installed, and ValueError if there is no epoch.
    """
    if not len(rewards):
        raise ValueError("rewards: there is no epoch to draw")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise ConfigError("plot_learning needs matplotlib: pip install matplotlib") from None
    epochs = np.arange(len(rewards))
    low, mean, high, best = np.array([_summary(np.asarray(each, np.float64)) for each in rewards]).T

    figure = Figure(figsize=(9, 4.2), layout="constrained")  # a figure of its own: pyplot keeps state for the whole process
    FigureCanvasAgg(figure)
    axis = figure.add_subplot()
    axis.fill_between(epochs, low, high, color=_BLUE, alpha=0.18, linewidth=0, label="10 % to 90 %")
    axis.plot(epochs, mean, color=_BLUE, linewidth=1.8, label="mean")
    axis.plot(epochs, best, color=_GREY, linewidth=1.2, label="best")
    if centre:
        axis.plot(list(centre), list(centre.values()), color=_GREEN, linewidth=1.8, marker="o", markersize=3, label="centre")
    for number, (epoch, text) in enumerate(sorted((events or {}).items())):
        axis.axvline(epoch, color=_INK, linewidth=0.8, linestyle=":")
        # Above the axes no curve can cross it, and two rows keep neighbours apart.
        where: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "xytext": (0, 4 + 13 * (number % 2)), "textcoords": "offset points"}
        axis.annotate(text, (epoch, 1.0), fontsize=9, color=_INK, ha="center", va="bottom", annotation_clip=False, **where)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("epoch")
    axis.set_ylabel("reward")
    axis.set_title(title, pad=8 + 13 * min(len(events or {}), 2))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color=_FAINT, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _summary(rewards: NDArray[np.float64]) -> tuple[float, float, float, float]:
    known = rewards[np.isfinite(rewards)]
    if not known.size:
        return (np.nan,) * 4
    return float(np.quantile(known, 0.1)), float(known.mean()), float(np.quantile(known, 0.9)), float(known.max())

"""The report of a benchmark. Every figure is computed from recorded episodes."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from echo_core import ConfigError
from echo_rl.evaluation.episodes import Cell, Episode, EpisodesFile, Recorded, lost
from echo_rl.evaluation.statistics import bca_interval, holm, paired_permutation_test
from echo_rl.training.metrics import mean_interval, share_interval

__all__ = ["Report"]

_NO_EPISODE = "no episode is recorded"


class Report:
    """What the episodes of a file say.

    Args:
        recorded: what ``EpisodesFile.read`` has returned.

    Attributes:
        cells: for each task, method and seed ``episodes``, ``planned``, ``faults``, ``success``, ``return``, and ``not_run``: why it or its rest was not run.
        rows: for each task and method the figures over all its seeds; empty ones have only ``not_run``.
        comparisons: for each two methods of a task the difference of their means, and the p value of a permutation test, raw and by Holm's method.
    """

    def __init__(self, recorded: Recorded) -> None:
        self._recorded, found = recorded, recorded.cells()
        plan = recorded.plan
        planned = set(itertools.product(plan.get("tasks", []), plan.get("methods", []), plan.get("seeds", [])))
        order: dict[Any, None] = dict.fromkeys([*plan.get("tasks", []), *plan.get("methods", []), *(name for cell in found for name in cell[:2])])
        place = {name: i for i, name in enumerate(order)}
        names = sorted({*planned, *found, *recorded.reasons}, key=lambda cell: (place.get(cell[0], -1), place.get(cell[1], -1), cell[2]))
        self.cells = [_cell(name, found.get(name, []), recorded) for name in names]
        pairs = dict.fromkeys((task, method) for task, method, _ in names)
        good = {pair: [e for name in names if name[:2] == pair for e in found.get(name, []) if not e.fault] for pair in pairs}
        self.rows = [_row(*pair, good[pair], [cell for cell in self.cells if (cell["task"], cell["method"]) == pair]) for pair in pairs]
        tests = [
            test
            for (task, first), (other, second) in itertools.combinations(pairs, 2)
            if task == other and (test := _compared(task, first, second, good[task, first], good[other, second])) is not None
        ]
        self.comparisons = [{**test, "p_holm": p} for test, p in zip(tests, holm([test["p"] for test in tests]), strict=True)]

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Report:
        """The report of a file of episodes. Raises ConfigError if the file is missing or cannot be read."""
        if not Path(path).exists():
            raise ConfigError(f"there is no file {path}; name the folder of a run as output_dir")
        return cls(EpisodesFile(path).read())

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON can hold it; a bound that is not finite is None."""
        found: dict[str, Any] = _finite({"plan": self._recorded.plan, "rows": self.rows, "cells": self.cells, "comparisons": self.comparisons})
        return found

    def markdown(self) -> str:
        """The report as a page."""
        head: tuple[str, ...] = ("method", "seeds", "episodes", "success@1", "return", "steps", "etps", "cost per success", "KV reuse", "eta_bw", "faults")
        lines = ["# Benchmark", ""]
        for task in dict.fromkeys(row["task"] for row in self.rows):
            lines += [f"## {task}", "", *_table(head, [_shown(row) for row in self.rows if row["task"] == task]), ""]
        lines += [
            "success@1: mean of the seeds' means, in brackets its 95 % t interval; with *, where seeds are equal or there is one, Wilson's interval of",
            "the episodes. return: mean of the episodes, in brackets its 95 % BCa bootstrap interval.",
            "etps: tokens that the language model made, by all seconds of the episodes. Costs: by the user's prices. eta_bw: mean return by mean b_eff, in",
            "millions; b_eff is the quadratic cost of each call's tokens without those that were found in the cache.",
            "",
        ]
        if said := [f"- `{method}`: {label}" for method, label in self._labels().items()]:
            lines += ["## Methods", "", *said, ""]
        if self.comparisons:
            head = ("task", "first", "second", "figure", "difference", "pairs", "unit", "p", "p (Holm)")
            rows = [
                (*(t[name] for name in ("task", "first", "second", "figure")), f"{t['difference']:+.3f}", t["pairs"], t["unit"], _p(t["p"]), _p(t["p_holm"]))
                for t in self.comparisons
            ]
            lines += ["## Comparisons", "", "Paired permutation tests, two-sided; Holm's method over all of them.", "", *_table(head, rows), ""]
        rows = [(c["task"], c["method"], c["seed"], *_shown_cell(c)) for c in self.cells]
        lines += ["## Cells", "", *_table(("task", "method", "seed", "episodes", "success@1", "return", "not run"), rows), ""]
        return "\n".join(lines)

    def draw(self, file: str | os.PathLike[str]) -> bool:
        """Draw success@1, or the return where a task has no success, of each method. Return False if matplotlib is not installed or nothing is recorded."""
        tasks = list(dict.fromkeys(row["task"] for row in self.rows if row["episodes"]))
        try:
            figures: Any = importlib.import_module("matplotlib.figure")
        except ImportError:
            return False
        if not tasks:
            return False
        methods = list(dict.fromkeys(row["method"] for row in self.rows if row["episodes"]))
        figure = figures.Figure(figsize=(1.5 + 2.8 * len(tasks), 1.3 + 0.35 * len(methods)), layout="constrained")
        axes = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
        for axis, task in zip(axes, tasks, strict=True):
            rows = [row for row in self.rows if row["task"] == task and row["episodes"]]
            name = "success" if all(row["success"] is not None for row in rows) else "return"
            for row in rows:
                found, at = row[name], methods.index(row["method"])
                low, high = (found["low"], found["high"]) if math.isfinite(found["low"]) else (found["mean"], found["mean"])
                axis.plot([low, high], [at, at], color="tab:blue", linewidth=2)
                axis.plot(found["seeds"], [at] * len(found["seeds"]), "o", color="tab:gray", markersize=4, alpha=0.6)
                axis.plot([found["mean"]], [at], "D", color="tab:blue", markersize=5)
            axis.set(title=task, xlabel="success@1" if name == "success" else "return", ylim=(len(methods) - 0.5, -0.5))
            if name == "success":
                axis.set(xlim=(-0.05, 1.05))
            axis.grid(axis="x", alpha=0.3)
        axes[0].set_yticks(range(len(methods)), methods)
        figure.suptitle("mean, 95 % interval, and each seed (gray)", fontsize=9)
        figure.savefig(file, dpi=110)
        return True

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write ``report.md``, ``report.json`` and, with matplotlib, ``report.png``."""
        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        (where / "report.md").write_text(self.markdown())
        (where / "report.json").write_text(json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")
        if not self.draw(where / "report.png"):
            (where / "report.png").unlink(missing_ok=True)  # one of an earlier run would show other episodes

    def _labels(self) -> dict[str, str]:
        labels: dict[str, str] = self._recorded.plan.get("labels", {})
        there = {cell["method"] for cell in self.cells}
        return {method: label for method, label in labels.items() if label and method in there}


def _cell(name: Cell, episodes: Sequence[Episode], recorded: Recorded) -> dict[str, Any]:
    good = [episode for episode in episodes if not episode.fault]
    planned = recorded.plan.get("episodes", 0)
    figures = {"episodes": len(good), "planned": planned, "faults": len(episodes) - len(good), "success": _success(good)}
    # A reason may be of an earlier run, and the cell complete by now.
    known = "; ".join(filter(None, (f"{len(good)} of {planned} are recorded", lost(episodes)))) if episodes else _NO_EPISODE
    reason = "" if good and len(good) >= planned else recorded.reasons.get(name, known)
    rewards = fmean(episode.reward for episode in good) if good else None
    return {"task": name[0], "method": name[1], "seed": name[2], **figures, "return": rewards, "not_run": reason}


def _success(episodes: Sequence[Episode]) -> float | None:
    """The share of solved episodes; None if there is none, or if the environment does not say."""
    known = [episode.success for episode in episodes if episode.success is not None]
    return sum(known) / len(known) if known and len(known) == len(episodes) else None


def _row(task: str, method: str, episodes: Sequence[Episode], cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"task": task, "method": method, "episodes": len(episodes), "faults": sum(cell["faults"] for cell in cells)}
    if not episodes:
        return {**row, "not_run": next((cell["not_run"] for cell in cells if cell["not_run"] != _NO_EPISODE), _NO_EPISODE)}
    seeds = sorted({episode.seed for episode in episodes})
    by_seed = [[episode for episode in episodes if episode.seed == seed] for seed in seeds]
    solved = _success(episodes)
    tokens, prompts = sum(e.tokens for e in episodes), sum(e.prompt_tokens for e in episodes)
    seconds, costs = sum(e.seconds for e in episodes), [e.cost for e in episodes]
    successes = sum(bool(e.success) for e in episodes)
    cost = sum(c for c in costs if c is not None) if prompts + tokens and None not in costs else None
    cached = [e.cached_tokens for e in episodes]
    counted = prompts and None not in cached
    return {
        **row,
        "seeds": len(seeds),
        "success": None if solved is None else _share([bool(e.success) for e in episodes], [fmean(bool(e.success) for e in one) for one in by_seed]),
        "return": _mean([e.reward for e in episodes], [fmean(e.reward for e in one) for one in by_seed]),
        "steps": fmean(e.steps for e in episodes),
        "seconds": seconds,
        "prompt_tokens": prompts,
        "tokens": tokens,
        "etps": tokens / seconds if tokens and seconds else None,
        "successes": successes,
        "cost": cost,
        "cost_per_success": cost / successes if cost is not None and successes else None,
        "kv_reuse": sum(c for c in cached if c is not None) / prompts if counted else None,
        "eta_bw": _eta_bw(episodes),
        "trained_steps": max((e.trained_steps or 0 for e in episodes), default=0) or None,
        "not_run": next((f"seed {cell['seed']}: {cell['not_run']}" for cell in cells if cell["not_run"]), ""),
    }


def _eta_bw(episodes: Sequence[Episode]) -> float | None:
    """The mean return by the mean cost b_eff of an episode, in millions; None without tokens, or where nobody has counted the cache."""
    costs = [episode.bandwidth for episode in episodes if episode.bandwidth is not None]
    return 1e6 * fmean(e.reward for e in episodes) / fmean(costs) if len(costs) == len(episodes) and sum(costs) > 0 else None


def _mean(values: Sequence[float], seeds: Sequence[float]) -> dict[str, Any]:
    """The mean of the seeds' means with its t interval, and the mean of the episodes with the bootstrap's. They differ if a seed has more episodes."""
    (low, high), (bca_low, bca_high) = mean_interval(seeds), bca_interval(values)
    of_episodes = {"episode_mean": fmean(values), "bca_low": bca_low, "bca_high": bca_high}
    return {"mean": fmean(seeds), "interval": "t", "low": low, "high": high, **of_episodes, "seeds": list(seeds)}


def _share(solved: Sequence[bool], seeds: Sequence[float]) -> dict[str, Any]:
    """As ``_mean``. Where the seeds do not differ, t would give an interval without width, as if nothing else could happen: it is Wilson's, of the episodes."""
    found = _mean([float(one) for one in solved], seeds)
    if len(seeds) < 2 or min(seeds) == max(seeds):
        found["low"], found["high"] = share_interval(sum(solved), len(solved))
        return {**found, "interval": "wilson"}
    return {**found, "low": max(0.0, found["low"]), "high": min(1.0, found["high"])}


def _compared(task: str, first: str, second: str, one: Sequence[Episode], two: Sequence[Episode]) -> dict[str, Any] | None:
    """Compare two methods on the episodes that both have played; None if there are none."""
    ours, theirs = ({(e.seed, e.episode): e for e in each} for each in (one, two))
    keys = sorted(ours.keys() & theirs.keys())
    if not keys:
        return None
    figure = "success" if all(e[key].success is not None for e in (ours, theirs) for key in keys) else "return"
    values = [[float(e[key].success or 0) if figure == "success" else e[key].reward for key in keys] for e in (ours, theirs)]
    unit = "episode"
    if any(e.trained_steps is not None for e in (*one, *two)):  # the episodes of one training are not independent of each other
        unit, seeds = "seed", sorted({seed for seed, _ in keys})
        values = [[fmean(value for value, key in zip(each, keys, strict=True) if key[0] == seed) for seed in seeds] for each in values]
    p = paired_permutation_test(values[0], values[1])
    mean = fmean(values[0]) - fmean(values[1])
    return {"task": task, "first": first, "second": second, "figure": figure, "difference": mean, "pairs": len(values[0]), "unit": unit, "p": p}


def _shown(row: dict[str, Any]) -> tuple[Any, ...]:
    if not row["episodes"]:
        return (row["method"], 0, 0, f"not run: {row['not_run']}", "", "", "", "", "", "", row["faults"])
    success, reward = row["success"], row["return"]
    tokens = row["tokens"] + row["prompt_tokens"]
    if not tokens:
        cost = "no tokens"
    elif row["cost"] is None:
        cost = "no price"
    else:
        cost = f"{row['cost_per_success']:.4g}" if row["successes"] else f"no success for {row['cost']:.4g}"
    return (
        f"{row['method']}{'' if row['trained_steps'] is None else ' (trained for ' + format(row['trained_steps'], ',').replace(',', ' ') + ' steps)'}",
        row["seeds"],
        row["episodes"],
        "the task has none" if success is None else _interval(success["mean"], success["low"], success["high"]) + ("" if success["interval"] == "t" else " *"),
        _interval(reward["episode_mean"], reward["bca_low"], reward["bca_high"]),
        f"{row['steps']:.1f}",
        "" if row["etps"] is None else f"{row['etps']:.1f}",
        cost,
        "" if not tokens else "not counted" if row["kv_reuse"] is None else f"{100 * row['kv_reuse']:.1f} %",
        "" if row["eta_bw"] is None else f"{row['eta_bw']:.3g}",
        row["faults"],
    )


def _shown_cell(cell: dict[str, Any]) -> tuple[Any, ...]:
    success, reward = (("" if cell[name] is None else f"{cell[name]:.3f}") for name in ("success", "return"))
    return f"{cell['episodes']} of {cell['planned']}" if cell["planned"] else cell["episodes"], success, reward, cell["not_run"]


def _interval(mean: float, low: float, high: float) -> str:
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]" if math.isfinite(low) else f"{mean:.3f}"


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(" ".join(str(cell).replace("|", "\\|").split()) for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *map(line, rows)]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

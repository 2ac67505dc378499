"""Reading result files: medians with spread, per case and system."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Metric


@dataclass(frozen=True)
class Spread:
    """The runs of one figure: median, the quartiles around it, and the extremes."""

    median: float
    q1: float
    q3: float
    low: float
    high: float
    runs: int

    @staticmethod
    def of(values: list[float]) -> Spread:
        q1, middle, q3 = np.percentile(values, [25, 50, 75])
        return Spread(float(middle), float(q1), float(q3), min(values), max(values), len(values))

    @property
    def percent(self) -> float:
        """Half the distance between the quartiles, in % of the median."""
        return 50 * (self.q3 - self.q1) / self.median if self.median else 0.0


class Results:
    """A result file, by case and system."""

    def __init__(self, content: dict[str, Any]) -> None:
        if content.get("format") != "echo-benchmarks":
            raise ValueError("this is not a result file of python -m benchmarks run")
        self.content = content
        self.suite: str = content.get("suite", "stream")
        self.cases: dict[str, dict[str, Any]] = {case["name"]: case for case in content["cases"]}
        self.systems: list[str] = list(content["systems"])
        self._runs = {(r["case"], r["system"]): r["runs"] for r in content["results"]}

    @staticmethod
    def load(path: Path) -> Results:
        """Read a file; ValueError names it when it holds something else."""
        try:
            return Results(json.loads(path.read_text()))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def metric(self, case: str) -> Metric:
        return Metric(**self.cases[case]["metric"])

    def figure(self, case: str, system: str, key: str) -> Spread | None:
        """One figure over the runs that ended well; None where there is none."""
        runs = self._runs.get((case, system), [])
        values = [run["figures"][key] for run in runs if key in run.get("figures", {})]
        return Spread.of(values) if values else None

    def main_figure(self, case: str, system: str) -> Spread | None:
        """The figure a case is judged by."""
        return self.figure(case, system, self.metric(case).key)

    def troubles(self, case: str, system: str) -> str:
        """What went wrong in the runs of a case: "2 of 5 hung", or ""."""
        runs = self._runs.get((case, system), [])
        parts = []
        for status in ("hung", "failed"):
            count = sum(run["status"] == status for run in runs)
            if count:
                parts.append(f"{count} of {len(runs)} {status}")
        return ", ".join(parts)

    def all_troubles(self) -> list[str]:
        """One sentence per case and system that did not always end well, with the first reason."""
        sentences = []
        for (case, system), runs in self._runs.items():
            bad = [run for run in runs if run["status"] != "ok"]
            if bad:
                what = self.troubles(case, system)
                sentences.append(f"{system}, {case}: {what} ({bad[0]['reason']})")
        return sentences

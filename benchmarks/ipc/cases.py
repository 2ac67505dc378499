"""What is measured, and slices of the two sides in turn."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

#: Measures for about so many seconds, and returns a figure.
Slice = Callable[[float], float]


@dataclass
class Case:
    """One comparison.

    Attributes:
        name, unit: of the figure, after it was multiplied by `scale`.
        ours, theirs: the two sides. `theirs` is None if the rival is not there, or has nothing like it.
        must: how many times better ours has to be; None: nobody has said.
        lower: a smaller figure is better.
        results: the pairs of figures, one of each side, in the order in which they were measured.
    """

    name: str
    unit: str
    ours: Slice
    theirs: Slice | None
    must: float | None = None
    scale: float = 1e-9
    lower: bool = False
    results: list[tuple[float, float | None]] = field(default_factory=list)

    def run(self, pairs: int, seconds: float) -> None:
        """Measure so many pairs of slices. Every second pair begins with the other side, so that drift favours nobody."""
        for number in range(pairs):
            if self.theirs is None:
                self.results.append((self.ours(seconds), None))
            elif number % 2:
                theirs = self.theirs(seconds)
                self.results.append((self.ours(seconds), theirs))
            else:
                self.results.append((self.ours(seconds), self.theirs(seconds)))

    def ratios(self) -> list[float]:
        """How many times better ours was, for each pair."""
        return sorted((b / a if self.lower else a / b) for a, b in self.results if b is not None)

    def row(self) -> str:
        """A row of the table."""
        ours = statistics.median(a for a, _ in self.results) * self.scale
        ratios = self.ratios()
        if not ratios:
            return f"| {self.name} | {self.unit} | {ours:.2f} | | | | |"
        theirs = statistics.median(b for _, b in self.results if b is not None) * self.scale
        ratio = statistics.median(ratios)
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratio] * 3
        must = "" if self.must is None else f"{self.must:g}: {'reached' if ratio >= self.must else 'missed'}"
        return f"| {self.name} | {self.unit} | {ours:.2f} | {theirs:.2f} | {ratio:.2f} | {low:.2f} to {high:.2f} | {must} |"


HEAD = "| case | unit | echo | unilab | ratio | spread | must reach |\n|---|---|---|---|---|---|---|"


def rate(work: Callable[[], object], amount: float) -> Slice:
    """Slices that call `work` again and again; the figure is how much of `amount` per call it does in a second."""

    def measured(seconds: float) -> float:
        begun = time.perf_counter()
        for calls in itertools.count(1):
            work()
            spent = time.perf_counter() - begun
            if spent >= seconds:
                return amount * calls / spent
        raise AssertionError

    work()
    return measured

"""What Echo's tables must reach, as checks on a result file: ratios to rivals in the same run, to itself, and one absolute limit."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.bars import Verdict
from benchmarks.results import Results

OURS = "echo"


@dataclass(frozen=True)
class Times:
    """At least `factor` times `rival`, in the case itself."""

    rival: str
    factor: float

    def check(self, results: Results, case: str) -> Verdict:
        title = f"≥ {self.factor:g}× {self.rival}"
        reached = times(results, case, self.rival)
        if reached is None:
            return Verdict(None, f"? {title}")
        return _verdict(reached / self.factor, title)


@dataclass(frozen=True)
class Unhindered:
    """At least `factor` times what `rival` reaches in the case `at`, where nobody writes, by what Echo reaches beside writers in the time in
    which its thread had a core."""

    rival: str
    factor: float
    at: str

    def check(self, results: Results, case: str) -> Verdict:
        title = f"≥ {self.factor:g}× {self.rival} in {self.at}, per second that it had a core"
        ours = results.figure(case, OURS, "unhindered_rate")
        theirs = results.main_figure(self.at, self.rival) if self.at in results.cases else None
        if ours is None or theirs is None or not theirs.median:
            return Verdict(None, f"? {title}")
        return _verdict(ours.median / theirs.median / self.factor, title)


@dataclass(frozen=True)
class Keeps:
    """At least `share` of Echo's own figure `key` in the case `of`."""

    key: str
    share: float
    of: str
    title: str

    def check(self, results: Results, case: str) -> Verdict:
        here, there = results.figure(case, OURS, self.key), results.figure(self.of, OURS, self.key)
        if here is None or there is None or not there.median:
            return Verdict(None, f"? {self.title}")
        return _verdict(here.median / there.median / self.share, self.title)


@dataclass(frozen=True)
class AtMost:
    """The case's own figure, which is better when it is less."""

    limit: float
    unit: str

    def check(self, results: Results, case: str) -> Verdict:
        figure = results.main_figure(case, OURS)
        title = f"≤ {self.limit:g} {self.unit}"
        return Verdict(None, f"? {title}") if figure is None else _verdict(self.limit / figure.median, title)


Bar = Times | Unhindered | Keeps | AtMost

ALONE = "≥ 4/5 of its speed without writers, per second that it had a core"

BARS: dict[str, tuple[Bar, ...]] = {
    "insert/41B/1M": (Times("cpprb", 20), Times("torchrl", 100)),
    "insert-batch/41B/1M": (Times("cpprb", 2),),
    "uniform/41B/1M": (Times("cpprb", 4), Times("torchrl", 15)),
    "uniform/28KB/20k": (Times("memcpy", 0.8),),
    "pair/41B/1M": (Times("cpprb", 10),),
    "pair/41B/10M": (Keeps("rate", 0.5, "pair/41B/1M", "≥ 1/2 of its speed at 1M"),),
    # Of its rival's figure without a writer as well: with one, cpprb is another buffer, and much slower.
    "pair-writer/41B/1M": (Times("cpprb", 10), Unhindered("cpprb", 10, "pair/41B/1M")),
    "tcp-insert/41B/100k/4w": (Times("reverb", 50),),
    "tcp-sample/41B/100k/4w": (Times("reverb", 50), Keeps("unhindered_rate", 0.8, "tcp-sample/41B/100k/0w", ALONE)),
    "tcp-insert/28KB/5k/4w": (Times("reverb", 10),),
    "tcp-sample/28KB/5k/4w": (Times("reverb", 10), Keeps("unhindered_rate", 0.8, "tcp-sample/28KB/5k/0w", ALONE)),
    "memory/41B/1M": (AtMost(56, "bytes"),),
}


def _verdict(reached: float, title: str) -> Verdict:
    """`reached` is 1 where the bar is just met."""
    if reached >= 1:
        return Verdict(True, f"ok {title}")
    return Verdict(False, f"**missed** {title} by {100 * (1 - reached):.0f} %")


def times(results: Results, case: str, rival: str) -> float | None:
    """How many times better than a rival Echo is, by medians; None if unknown."""
    ours, theirs = results.main_figure(case, OURS), results.main_figure(case, rival)
    if ours is None or theirs is None or not ours.median or not theirs.median:
        return None
    factor = ours.median / theirs.median
    return factor if results.metric(case).more_is_better else 1 / factor


def check(results: Results, case: str) -> list[Verdict]:
    """The verdicts on a case; none where nothing was promised or Echo was not measured."""
    return [bar.check(results, case) for bar in BARS.get(case, ())] if OURS in results.systems else []

"""One module per way of measuring. Each has `run(system, case, pace, report) -> Figures`."""

from __future__ import annotations

from importlib import import_module

from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.replay.adapters.base import System
from benchmarks.replay.cases import Case

MODULES = {
    "insert": "insert",
    "insert-batch": "insert",
    "uniform": "draw",
    "pair": "draw",
    "pair-writer": "beside",
    "tcp-insert": "beside",
    "tcp-sample": "beside",
    "memory": "memory",
    "memory-stacks": "stacks",
}


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    """Measure one case once, in this process, which is the learner."""
    module = import_module(f"benchmarks.replay.modes.{MODULES[case.mode]}")
    figures: Figures = module.run(system, case, pace, report)
    return figures

"""One module per way of measuring. Each has ``run(system, case, pace, report) -> Figures``."""

from __future__ import annotations

from importlib import import_module

from benchmarks.adapters.base import System
from benchmarks.cases import Case
from benchmarks.pace import Figures, Pace, Reporter

MODULES = {
    "tcp": "throughput",
    "tcp-batch": "throughput",
    "busy": "busy",
    "shm": "throughput",
    "shm-batch": "throughput",
    "inproc": "inprocess",
    "inproc-2t": "inprocess",
    "inproc-batch-2t": "inprocess",
    "ready": "calls",
    "submit": "calls",
    "submit-batch": "calls",
    "latency": "latency",
    "weights": "weights",
    "publish": "weights",
    "idle": "idle",
    "crowd": "crowd",
    "ucx-shm": "ucx",
    "ucx-tcp": "ucx",
}


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    """Measure one case once, in this process, which is the learner."""
    module = import_module(f"benchmarks.modes.{MODULES[case.mode]}")
    figures: Figures = module.run(system, case, pace, report)
    return figures

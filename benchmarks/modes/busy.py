"""Samples per second while a thread of the learner computes in Python, as a training loop may. A system that needs the interpreter waits for its turn."""

from __future__ import annotations

import threading
from typing import NoReturn

from benchmarks.adapters.base import System
from benchmarks.cases import Case
from benchmarks.modes import throughput
from benchmarks.pace import Figures, Pace, Reporter


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    threading.Thread(target=_compute, daemon=True).start()
    return throughput.run(system, case, pace, report)


def _compute() -> NoReturn:
    number = 0
    while True:
        number += 1

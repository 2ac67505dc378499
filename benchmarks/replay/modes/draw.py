"""Batches drawn per second by one thread: uniform ones, or prioritized ones whose items get new priorities."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import cycle

import numpy as np

from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.processes import cpu_seconds
from benchmarks.replay.adapters.base import Buffer, System
from benchmarks.replay.cases import BATCH, Case
from benchmarks.replay.items import ITEMS
from benchmarks.replay.modes.steps import check, fill, on_core, repeat

#: Arrays of priorities that circulate; a learner has others every time, but computing them is its own work.
POOL = 64

#: Pairs that spread the priorities of a full table before the clock starts, as far as so many can.
SPREAD = 2000


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    buffer = system.buffer(ITEMS[case.payload], case.capacity, BATCH, case.prioritized)
    fill(buffer, report)
    check(buffer)
    call = pairs(buffer) if case.prioritized else batches(buffer)
    report.phase("warm-up", pace.warmup + 10)
    if case.prioritized:
        repeat(call, 0, at_once=SPREAD)
    repeat(call, pace.warmup)
    report.phase("measure", pace.seconds)
    cpu = cpu_seconds(os.getpid())
    count, elapsed = on_core(lambda: repeat(call, pace.seconds))
    cpu = cpu_seconds(os.getpid()) - cpu
    return {"rate": count / elapsed, "call_us": elapsed / count * 1e6, "cpu_us": cpu / count * 1e6}


def batches(buffer: Buffer) -> Callable[[], None]:
    """Draw a batch and read one element of every leaf of it. The one before is let go of meanwhile, as a learner's loop would."""
    sample, touch = buffer.sample, buffer.touch
    return lambda: touch(sample())


def pairs(buffer: Buffer) -> Callable[[], None]:
    """Draw a batch with weights and give its items new priorities."""
    rng = np.random.default_rng(3)
    given, pair = cycle(rng.gamma(1.0, 1.0, (POOL, BATCH))), buffer.pair
    return lambda: pair(next(given))

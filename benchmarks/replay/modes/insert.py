"""Items inserted per second by one thread, singly or in calls of many, into a table that is full: each takes the place of the oldest."""

from __future__ import annotations

from time import perf_counter

from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.replay.adapters.base import Buffer, System
from benchmarks.replay.cases import BATCH, Case
from benchmarks.replay.items import ITEMS
from benchmarks.replay.modes.steps import check, fill, on_core, repeat


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    buffer = system.buffer(ITEMS[case.payload], case.capacity, BATCH, case.prioritized)
    fill(buffer, report)
    check(buffer)
    measure = _single if case.mode == "insert" else _many
    report.phase("warm-up", pace.warmup)
    measure(buffer, pace.warmup)
    report.phase("measure", pace.seconds)
    count, elapsed = on_core(lambda: measure(buffer, pace.seconds))
    check(buffer)
    return {"rate": count / elapsed, "call_us": elapsed / count * 1e6 * (1 if case.mode == "insert" else BATCH)}


def _single(buffer: Buffer, seconds: float) -> tuple[int, float]:
    items, add = buffer.payload.samples(), buffer.add
    count = 0
    start = now = perf_counter()
    end = start + seconds
    while now < end:
        for item in items:
            add(item)
        count += len(items)
        now = perf_counter()
    return count, now - start


def _many(buffer: Buffer, seconds: float) -> tuple[int, float]:
    stacked, extend = buffer.payload.stacked(BATCH), buffer.extend
    calls, elapsed = repeat(lambda: extend(stacked), seconds, at_once=8)
    return calls * BATCH, elapsed

"""A learner that draws while workers in other processes insert as fast as they can: what both reach, and what the learner waits for."""

from __future__ import annotations

from time import perf_counter

from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.processes import Crew
from benchmarks.replay.adapters.base import System
from benchmarks.replay.cases import BATCH, Case
from benchmarks.replay.items import ITEMS
from benchmarks.replay.modes.draw import batches, pairs
from benchmarks.replay.modes.steps import check, fill, repeat, waited_for_core


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    payload = ITEMS[case.payload]
    pairing = case.mode == "pair-writer"
    workers = 1 if pairing else case.workers
    buffer = system.server(payload, case.capacity, BATCH, case.prioritized, workers)
    fill(buffer, report)
    check(buffer)
    call = pairs(buffer) if pairing else batches(buffer)
    job = {"system": system.name, "payload": case.payload, "address": buffer.address}
    report.phase("connect", 40.0)
    with Crew([job] * (workers if buffer.address else 0), report.fail, "benchmarks.replay.worker") as crew:
        report.phase("warm-up", pace.warmup + 2)
        crew.go()
        buffer.begin()
        repeat(call, pace.warmup + 0.5)  # until every worker has begun
        report.phase("measure", pace.seconds)
        before, waited, start = buffer.inserted(), waited_for_core(), perf_counter()
        count, elapsed = repeat(call, pace.seconds)
        while workers and buffer.inserted() == before:  # a busy machine starts the workers late; the harness ends a run that hangs
            more, longer = repeat(call, pace.seconds)
            count, elapsed = count + more, elapsed + longer
        waited = waited_for_core() - waited
        inserted, whole = buffer.inserted() - before, perf_counter() - start
    draws = count if pairing else count * BATCH
    figures = {"insert_rate": inserted / whole, "draw_rate": draws / elapsed, "core_share": 1 - min(waited / elapsed, 1.0)}
    # What the learner would draw had it not had to wait for a core: what is missing of that beside workers, they took by locks and caches.
    figures["unhindered_rate"] = draws / max(elapsed - waited, 1e-9)
    figures["rate"] = figures["insert_rate" if case.mode == "tcp-insert" else "draw_rate"]
    return figures

"""From ``send()`` in one process to ``sample()`` returning in another, on an idle link."""

from __future__ import annotations

from time import monotonic, monotonic_ns

import numpy as np

from benchmarks.adapters.base import System
from benchmarks.cases import Case
from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.payloads import PAYLOADS
from benchmarks.processes import Crew


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    payload = PAYLOADS[case.payload]
    learner = system.learner(payload, 1, case.workers)
    stamp = payload.paths[0]
    job = {
        "role": "pace",
        "system": system.name,
        "payload": case.payload,
        "address": learner.address,
    }
    times: list[int] = []

    def collect(seconds: float) -> None:
        end = monotonic() + seconds
        while monotonic() < end:
            batch = learner.sample()
            now = monotonic_ns()
            sent = learner.column(batch, stamp).reshape(-1)[:2].view(np.int64)[0]
            times.append(now - int(sent))

    with Crew([job] * case.workers, report.fail) as crew:
        report.phase("warm-up", pace.warmup)
        crew.go()
        collect(pace.warmup)
        times.clear()
        # A percentile of 1 % needs many samples, and at one every 2 ms they take their time.
        seconds = 2 * pace.seconds
        report.phase("measure", seconds)
        collect(seconds)
    p50, p90, p99 = np.percentile(times, [50, 90, 99]) / 1e3
    return {"p50_us": p50, "p90_us": p90, "p99_us": p99, "samples": len(times)}

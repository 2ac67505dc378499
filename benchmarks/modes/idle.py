"""What a server with connected but silent workers costs while its learner waits in ``sample()``."""

from __future__ import annotations

import os
import threading
import time

from benchmarks.adapters.base import System
from benchmarks.cases import Case
from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.payloads import PAYLOADS
from benchmarks.processes import Crew, cpu_seconds


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    learner = system.learner(PAYLOADS[case.payload], 1, case.workers)
    job = {
        "role": "idle",
        "system": system.name,
        "payload": case.payload,
        "address": learner.address,
    }
    with Crew([job] * case.workers, report.fail) as crew:
        report.phase("warm-up", pace.warmup)
        crew.go()
        for _ in crew.workers:
            learner.sample()
        threading.Thread(target=learner.sample, daemon=True).start()
        time.sleep(pace.warmup)
        seconds = 2 * pace.seconds
        report.phase("measure", seconds)
        start, cpu = time.perf_counter(), cpu_seconds(os.getpid())
        time.sleep(seconds)
        cpu = cpu_seconds(os.getpid()) - cpu
        elapsed = time.perf_counter() - start
    return {"cpu_percent": 100 * cpu / elapsed}

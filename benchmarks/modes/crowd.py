"""Hundreds of connections to one server, all with more to send than it takes: who gets how much?

The learner takes batches at a set pace, below what any of the systems can carry. So every
connection is held back by its server nearly all of the time, and the server decides whose samples
are next. Were the workers the bottleneck, the interpreter's lock would decide.
"""

from __future__ import annotations

from time import perf_counter, sleep

import numpy as np

from benchmarks.adapters.base import System
from benchmarks.cases import Case
from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.payloads import PAYLOADS
from benchmarks.processes import Crew, allow_open_files

#: Connections get their turns in rounds; a share is only fair over several of them.
ROUNDS = 4.0

#: Seconds that hundreds of workers may take to begin.
AWAKE = 15.0

#: Samples per second that the learner takes.
TAKEN = 20_000


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    allow_open_files(4096)
    payload = PAYLOADS[case.payload]
    learner = system.learner(payload, case.batch_size, case.connections)
    jobs = [
        {
            "role": "crowd",
            "system": system.name,
            "payload": case.payload,
            "address": learner.address,
            "connections": list(range(first, case.connections, case.workers)),
        }
        for first in range(case.workers)
    ]
    mark = payload.paths[0]

    def count(seconds: float) -> tuple[np.ndarray, float]:
        counts = np.zeros(case.connections, np.int64)
        start = now = perf_counter()
        while now < start + seconds:
            ahead = counts.sum() / TAKEN - (now - start)
            if ahead > 0:
                sleep(ahead)
            marks = learner.column(learner.sample(), mark)[:, 0].astype(np.int64)
            counts += np.bincount(marks, minlength=case.connections)
            now = perf_counter()
        return counts, now - start

    report.phase("connect", 20.0)
    with Crew(jobs, report.fail) as crew:
        # What fills the connections' buffers first says nothing about turns, nor do workers that have not begun.
        settle = pace.warmup + pace.seconds
        report.phase("warm-up", settle + AWAKE)
        crew.go()
        served, _ = count(settle)
        patience = perf_counter() + AWAKE
        while not served.all() and perf_counter() < patience:
            served += count(settle)[0]
        seconds = ROUNDS * pace.seconds
        report.phase("measure", seconds)
        counts, elapsed = count(seconds)
    p5, p95 = np.percentile(counts, [5, 95])
    return {
        "unfairness": float(counts.max() / max(counts.min(), 0.5)),
        "p95_over_p5": float(p95 / max(p5, 0.5)),
        "rate": float(counts.sum() / elapsed),
        "connections_served": int((counts > 0).sum()),
    }

"""Samples per second from worker processes, and the CPU they cost at either end."""

from __future__ import annotations

import os

from benchmarks.adapters.base import Program, System
from benchmarks.cases import Case
from benchmarks.modes.receive import check, receive
from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.payloads import PAYLOADS
from benchmarks.processes import Crew, cpu_seconds


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    if isinstance(system, Program):
        return system.measure(case, pace, report)
    payload = PAYLOADS[case.payload]
    learner = system.learner(payload, case.batch_size, case.workers)
    job = {
        "role": "flood-batch" if case.mode.endswith("-batch") else "flood",
        "system": system.name,
        "payload": case.payload,
        "address": learner.address,
    }
    with Crew([job] * case.workers, report.fail) as crew:
        report.phase("warm-up", pace.warmup)
        crew.go()
        check(learner)
        receive(learner, pace.warmup)
        report.phase("measure", pace.seconds)
        own, theirs = cpu_seconds(os.getpid()), crew.cpu_seconds()
        count, elapsed = receive(learner, pace.seconds)
        own, theirs = cpu_seconds(os.getpid()) - own, crew.cpu_seconds() - theirs
    return {
        "rate": count / elapsed,
        "bytes_per_s": count * payload.sample_bytes / elapsed,
        "learner_cpu_us": own / count * 1e6,
        "worker_cpu_us": theirs / count * 1e6,
    }

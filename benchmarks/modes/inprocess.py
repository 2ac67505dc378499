"""Samples per second through a server in the same process, from one thread or between two."""

from __future__ import annotations

import os
import threading
from time import perf_counter

from benchmarks.adapters.base import Learner, System
from benchmarks.cases import Case
from benchmarks.modes.receive import check, one_batch, receive
from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.payloads import PAYLOADS, Tree
from benchmarks.processes import cpu_seconds
from benchmarks.worker import STACK


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    learner = system.learner(PAYLOADS[case.payload], case.batch_size, 0)
    measure = _one_thread if case.mode == "inproc" else _two_threads
    return measure(learner, case, pace, report)


def _one_thread(learner: Learner, case: Case, pace: Pace, report: Reporter) -> Figures:
    """Fill a batch, take it, and again."""
    samples = one_batch(learner)
    report.phase("warm-up", pace.warmup)
    for sample in samples:
        learner.submit(sample)
    check(learner)
    _fill_and_take(learner, samples, pace.warmup)
    report.phase("measure", pace.seconds)
    cpu = cpu_seconds(os.getpid())
    count, elapsed = _fill_and_take(learner, samples, pace.seconds)
    cpu = cpu_seconds(os.getpid()) - cpu
    return {"rate": count / elapsed, "learner_cpu_us": cpu / count * 1e6}


def _fill_and_take(learner: Learner, samples: list[Tree], seconds: float) -> tuple[int, float]:
    submit, take, touch = learner.submit, learner.sample, learner.touch
    count = 0
    start = now = perf_counter()
    end = start + seconds
    while now < end:
        for sample in samples:
            submit(sample)
        touch(take())
        count += len(samples)
        now = perf_counter()
    return count, now - start


def _two_threads(learner: Learner, case: Case, pace: Pace, report: Reporter) -> Figures:
    """One thread submits without end, the main thread takes batches.

    The producer is a daemon that may be asleep in a full store when the process ends.
    """
    if case.mode == "inproc-batch-2t":
        stacked, submit_batch = learner.payload.stacked(STACK), learner.submit_batch

        def produce() -> None:
            while True:
                submit_batch(stacked)
    else:
        samples, submit = learner.payload.samples(), learner.submit

        def produce() -> None:
            while True:
                for sample in samples:
                    submit(sample)

    report.phase("warm-up", pace.warmup)
    threading.Thread(target=produce, daemon=True).start()
    check(learner)
    receive(learner, pace.warmup)
    report.phase("measure", pace.seconds)
    cpu = cpu_seconds(os.getpid())
    count, elapsed = receive(learner, pace.seconds)
    cpu = cpu_seconds(os.getpid()) - cpu
    return {"rate": count / elapsed, "learner_cpu_us": cpu / count * 1e6}

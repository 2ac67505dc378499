"""What single calls cost in one thread: ``sample()`` with a batch ready, ``submit()`` with room."""

from __future__ import annotations

from statistics import median
from time import perf_counter, perf_counter_ns

from benchmarks.adapters.base import Learner, System
from benchmarks.cases import Case
from benchmarks.modes.receive import check, one_batch
from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.payloads import PAYLOADS
from benchmarks.worker import STACK


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    learner = system.learner(PAYLOADS[case.payload], case.batch_size, 0)
    for sample in one_batch(learner):
        learner.submit(sample)
    check(learner)
    measure = {"ready": _ready, "submit": _submit, "submit-batch": _submit_batch}[case.mode]
    report.phase("warm-up", pace.warmup)
    measure(learner, pace.warmup)
    report.phase("measure", pace.seconds)
    return {"call_us": measure(learner, pace.seconds) / 1e3}


def _ready(learner: Learner, seconds: float) -> float:
    """The median call of ``sample()`` while a whole batch waits, in ns.

    The timed statement also lets go of the batch before, because a learner pays for that as well.
    """
    samples = one_batch(learner)
    submit, take, clock = learner.submit, learner.sample, perf_counter_ns
    times = []
    end = perf_counter() + seconds
    held = None
    while perf_counter() < end:
        for sample in samples:
            submit(sample)
        start = clock()
        held = take()
        times.append(clock() - start)
        learner.touch(held)
    return median(times) - _clock_cost()


def _submit(learner: Learner, seconds: float) -> float:
    """The mean call of ``submit()`` while filling a batch, in ns, the ``for`` loop included."""
    samples = one_batch(learner)
    submit, take, clock = learner.submit, learner.sample, perf_counter_ns
    times = []
    end = perf_counter() + seconds
    while perf_counter() < end:
        start = clock()
        for sample in samples:
            submit(sample)
        times.append(clock() - start)
        take()
    return (median(times) - _clock_cost()) / len(samples)


def _submit_batch(learner: Learner, seconds: float) -> float:
    """The mean cost per sample of ``submit_batch()`` while filling a batch, in ns."""
    stacked = learner.payload.stacked(STACK)
    calls = range(learner.batch_size // STACK)
    submit_batch, take, clock = learner.submit_batch, learner.sample, perf_counter_ns
    times = []
    end = perf_counter() + seconds
    while perf_counter() < end:
        start = clock()
        for _ in calls:
            submit_batch(stacked)
        times.append(clock() - start)
        take()
    return (median(times) - _clock_cost()) / learner.batch_size


def _clock_cost() -> float:
    """What reading the clock twice adds to a time, in ns."""
    clock = perf_counter_ns
    times = []
    for _ in range(2000):
        start = clock()
        times.append(clock() - start)
    return median(times)

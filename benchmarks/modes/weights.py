"""From ``publish()`` in the learner to ``weights()`` returning in a worker that waits; and what the call of ``publish()`` takes."""

from __future__ import annotations

import random
from time import monotonic, monotonic_ns, sleep

import numpy as np

from benchmarks.adapters.base import Program, System
from benchmarks.cases import Case
from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.payloads import PAYLOADS, Tree
from benchmarks.processes import Crew

#: Bytes of the weights of each mode, beside the time at which they were published.
BYTES = {"weights": 0, "publish": 10_000_000}


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    """`publish` is the call; `left` is from its return until the worker's returns, and `read` by how much longer that is than for weights of a few bytes.

    The worker answers every version with a sample, so that each is published to one that waits.
    """
    if isinstance(system, Program):
        return system.measure(case, pace, report)
    payload = PAYLOADS[case.payload]
    learner = system.learner(payload, 1, case.workers)
    small = {"published": np.zeros(1, np.int64), "w": np.zeros(0)}
    weights = {**small, "w": np.random.default_rng(1).random(BYTES[case.mode] // 8)}
    job = {"role": "follow", "system": system.name, "payload": case.payload, "address": learner.address}
    pause = random.Random(7).uniform
    calls: list[int] = []
    arrivals: list[int] = []
    left: list[int] = []

    def publish(weights: Tree, seconds: float) -> None:
        for times in (calls, arrivals, left):
            times.clear()
        end = monotonic() + seconds
        while monotonic() < end:
            sleep(pause(0.001, 0.003))  # until it sleeps
            weights["published"][0] = monotonic_ns()
            start = monotonic_ns()
            learner.publish(weights)
            done = monotonic_ns()
            calls.append(done - start)
            stamps = learner.column(learner.sample(), payload.paths[0]).reshape(-1)[:4].view(np.int64)
            assert stamps[0] == weights["published"][0], "the worker has other weights than were published"
            arrivals.append(int(stamps[1] - stamps[0]))
            left.append(int(stamps[1]) - done)

    with Crew([job] * case.workers, report.fail) as crew:
        report.phase("warm-up", pace.warmup)
        crew.go()
        learner.sample()
        publish(weights, pace.warmup)
        seconds = 2 * pace.seconds
        report.phase("measure", seconds)
        if BYTES[case.mode]:
            publish(small, seconds / 2)
            told = float(np.median(left))
            seconds /= 2
        publish(weights, seconds)
    p50, p90, p99 = np.percentile(arrivals, [50, 90, 99]) / 1e3
    figures = {"p50_us": p50, "p90_us": p90, "p99_us": p99, "samples": len(arrivals), "publish_us": float(np.median(calls)) / 1e3}
    if BYTES[case.mode]:
        figures |= {"left_us": float(np.median(left)) / 1e3, "read_us": (float(np.median(left)) - told) / 1e3}
        figures |= {f"{name}_bytes_per_s": BYTES[case.mode] / figures[f"{name}_us"] * 1e6 for name in ("publish", "read")}
    return figures

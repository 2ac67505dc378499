"""Bare processes that copy the same bytes in the same pieces, and wake each other as seldom: the ceiling of any transport through shared memory.

No Python, nothing claimed but a place, nothing checked, committed or handed over. Each way of copying gets a part of the time, and the quicker counts.
"""

from __future__ import annotations

from benchmarks import copies
from benchmarks.adapters.base import Program
from benchmarks.cases import Case
from benchmarks.modes.weights import BYTES
from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.payloads import PAYLOADS

WAYS = ("plain", "stream")


class Memcpy(Program):
    name = "memcpy"
    can = frozenset({"shm", "weights"})

    def measure(self, case: Case, pace: Pace, report: Reporter) -> Figures:
        report.phase("compile", 60.0)
        program = copies.build()
        report.phase("measure", pace.warmup + 2 * pace.seconds)
        return self._weights(program, case, pace) if case.mode in BYTES else self._samples(program, case, pace)

    def _samples(self, program: str, case: Case, pace: Pace) -> Figures:
        payload = PAYLOADS[case.payload]
        size, shape = payload.sample_bytes, copies.shape(payload)
        ways = [copies.ask(program, "copy", case.workers, *shape, "4k", way, pace.seconds / 2) for way in WAYS]
        rate, effort = max(ways)
        (woken,) = copies.ask(program, "wake", *shape, payload.batch_size, pace.seconds / 2)
        return {
            "rate": rate / size,
            "bytes_per_s": rate,
            "worker_cpu_us": size / effort * 1e6,
            "learner_cpu_us": woken / payload.batch_size * 1e6,
        }

    def _weights(self, program: str, case: Case, pace: Pace) -> Figures:
        """`publish` is the copy in, `left` what is left until the other has copied it out, `read` the same without the wake-up."""
        size, small = 8 + BYTES[case.mode], 8
        names = ("publish_us", "left_us", "p50_us", "p90_us", "p99_us")
        ways = [copies.ask(program, "publish", size, copies.BUFFERS, way, pace.seconds * 0.7) for way in WAYS]
        figures = {name: min(values) * 1e6 for name, *values in zip(names, *ways, strict=True)}
        if BYTES[case.mode]:
            _, told, *_ = copies.ask(program, "publish", small, copies.BUFFERS, WAYS[0], pace.seconds * 0.3)
            figures["read_us"] = figures["left_us"] - told * 1e6
            figures |= {f"{name}_bytes_per_s": size / figures[f"{name}_us"] * 1e6 for name in ("publish", "read")}
        return figures

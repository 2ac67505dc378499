"""What is measured: a list of cases, each one mode with one payload and one number of workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from typing import Any

from benchmarks.payloads import PAYLOADS


@dataclass(frozen=True)
class Metric:
    """The figure a case is judged by."""

    key: str
    unit: str
    more_is_better: bool


RATE = Metric("rate", "samples/s", True)
CALL = Metric("call_us", "µs per call", False)


@dataclass(frozen=True)
class Mode:
    """A way of using a system; ``needs`` is what an adapter must list in ``can`` to take part."""

    name: str
    title: str
    needs: str
    metric: Metric


MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        Mode("tcp", "TCP, plain send() in a loop", "tcp", RATE),
        Mode("tcp-batch", "TCP, send_batch() of 64", "tcp-batch", RATE),
        Mode("busy", "TCP, plain send() in a loop, beside a learner's thread that computes in Python", "tcp", RATE),
        Mode("inproc", "in-process submit() → sample(), one thread", "inprocess", RATE),
        Mode("inproc-2t", "in-process submit() → sample(), two threads", "inprocess", RATE),
        Mode(
            "inproc-batch-2t",
            "in-process submit_batch() of 64 → sample(), two threads",
            "inprocess-batch",
            RATE,
        ),
        Mode("ready", "sample() with a batch ready", "batches", CALL),
        Mode("submit", "submit(), per call", "inprocess", CALL),
        Mode("submit-batch", "submit_batch() of 64, per sample", "inprocess-batch", CALL),
        Mode("latency", "idle send → sample, batch of 1, p50", "tcp", Metric("p50_us", "µs", False)),
        Mode("weights", "publish() → weights() of a waiting worker, p50", "weights", Metric("p50_us", "µs", False)),
        Mode("publish", "publish() of 10 MB of weights that a worker reads, median call", "weights", Metric("publish_us", "µs per call", False)),
        Mode(
            "idle",
            "CPU of an idle server",
            "tcp",
            Metric("cpu_percent", "% of a core", False),
        ),
        Mode(
            "crowd",
            "500 connections: busiest / slowest",
            "crowd",
            Metric("unfairness", "times", False),
        ),
        Mode("shm", "Shared memory, plain send() in a loop", "shm", RATE),
        Mode("shm-batch", "Shared memory, send_batch() of 64", "shm-batch", RATE),
        Mode("ucx-shm", "UCX over shared memory, plain send() in a loop", "ucx", RATE),
        Mode("ucx-tcp", "UCX over TCP, plain send() in a loop", "ucx-tcp", RATE),
    )
}


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    mode: str
    payload: str
    workers: int = 0
    connections: int = 0
    quick: bool = False

    @property
    def name(self) -> str:
        parts = [self.mode, self.payload]
        if self.connections:
            parts.append(f"{self.connections}c")
        elif self.workers:
            parts.append(f"{self.workers}w")
        return "/".join(parts)

    @property
    def metric(self) -> Metric:
        return MODES[self.mode].metric

    @property
    def batch_size(self) -> int:
        """Latency is a matter of single samples, all else of the payload's batches."""
        if self.mode in ("latency", "idle", "weights", "publish"):
            return 1
        return PAYLOADS[self.payload].batch_size

    def describe(self) -> dict[str, Any]:
        """The case as it stands in a result file."""
        return {
            **asdict(self),
            "name": self.name,
            "batch_size": self.batch_size,
            "metric": asdict(self.metric),
        }


def _all() -> Iterable[Case]:
    for payload in ("20B", "1KB", "28KB"):
        for workers in (1, 4, 16):
            yield Case("tcp", payload, workers, quick=payload != "1KB" and workers < 16)
    for payload in ("28KB-42", "220KB-43", "1MB"):
        for workers in (1, 4):
            yield Case("tcp", payload, workers, quick=payload != "220KB-43" and workers == 1)
    for payload in ("20B", "1KB"):
        for workers in (1, 4, 16):
            yield Case("tcp-batch", payload, workers, quick=payload == "20B" and workers < 16)
    for payload in ("28KB", "1MB"):
        yield Case("busy", payload, 1)
    for payload in ("20B", "1KB", "28KB", "28KB-42"):
        yield Case("inproc", payload, quick=payload in ("20B", "28KB-42"))
        yield Case("inproc-2t", payload, quick=payload in ("20B", "28KB-42"))
    yield Case("inproc-batch-2t", "20B", quick=True)
    for payload in ("20B", "1KB", "28KB-42"):
        yield Case("ready", payload, quick=payload != "1KB")
    for payload in ("20B", "28KB-42"):
        yield Case("submit", payload, quick=payload == "20B")
    yield Case("submit-batch", "20B", quick=True)
    yield Case("latency", "20B", 1, quick=True)
    yield Case("weights", "20B", 1, quick=True)
    yield Case("publish", "20B", 1, quick=True)
    yield Case("idle", "20B", 4, quick=True)
    yield Case("crowd", "1KB", workers=20, connections=500)
    for payload, workers in (("20B", 1), ("20B", 2), ("28KB", 1), ("28KB", 4), ("1MB", 1)):
        yield Case("shm", payload, workers)
    yield Case("shm-batch", "20B", 2)
    for payload in ("20B", "1KB", "28KB", "1MB"):
        yield Case("ucx-shm", payload, 2)
        yield Case("ucx-tcp", payload, 1)


CASES: dict[str, Case] = {case.name: case for case in _all()}


def select(patterns: Iterable[str] | None, quick: bool, cases: Mapping[str, Any] = CASES) -> list[Any]:
    """The cases whose names match any pattern (shell wildcards, or a whole part before a slash).

    Without patterns: all of them, or the quick ones. ValueError names a pattern that matches none.
    """
    if not patterns:
        return [case for case in cases.values() if case.quick or not quick]
    chosen: list[Any] = []
    for pattern in patterns:
        matched = [case for name, case in cases.items() if fnmatch(name, pattern) or name.startswith(f"{pattern}/")]
        if not matched:
            raise ValueError(f"no case matches '{pattern}'; python -m benchmarks cases lists them all")
        chosen += [case for case in matched if case not in chosen]
    return chosen

"""What is measured of replay tables: a list of cases, each one mode with one kind of item, a table's size and a number of workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.cases import Metric, Mode

#: Items in one draw, and in one call that inserts many.
BATCH = 256

INSERTS = Metric("rate", "inserts/s", True)
BATCHES = Metric("rate", "batches/s", True)
SAMPLES = Metric("rate", "samples/s", True)
PAIRS = Metric("rate", "pairs/s", True)

#: What modes need that have workers in other processes.
NETWORK = ("server", "beside")

MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        Mode("insert", "Insert single items, one thread, the table full", "insert", INSERTS),
        Mode("insert-batch", f"Insert in calls of {BATCH}, one thread, the table full", "insert", INSERTS),
        Mode("uniform", f"Uniform batches of {BATCH}", "uniform", BATCHES),
        Mode("pair", f"Prioritized: draw {BATCH} with weights and update them", "prioritized", PAIRS),
        Mode("pair-writer", "The same while another process inserts as fast as it can", "writer", PAIRS),
        Mode("tcp-insert", "Over the network: inserts, while a learner samples", "server", INSERTS),
        Mode("tcp-sample", f"Over the network: batches of {BATCH} at the learner, beside the workers", "beside", SAMPLES),
        Mode("memory", "Memory of a full prioritized table", "memory", Metric("bytes_per_item", "bytes per item", False)),
        Mode("memory-stacks", "Memory of transitions of 4 stacked frames, prioritized", "stacks", Metric("bytes_per_item", "bytes per item", False)),
    )
}


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    mode: str
    payload: str
    capacity: int
    workers: int = 0
    quick: bool = False

    @property
    def name(self) -> str:
        parts = [self.mode, self.payload, short(self.capacity)]
        if MODES[self.mode].needs in NETWORK:
            parts.append(f"{self.workers}w")
        return "/".join(parts)

    @property
    def metric(self) -> Metric:
        return MODES[self.mode].metric

    @property
    def prioritized(self) -> bool:
        return self.mode in ("pair", "pair-writer", "memory")

    def describe(self) -> dict[str, Any]:
        """The case as it stands in a result file."""
        return {**asdict(self), "name": self.name, "batch_size": BATCH, "metric": asdict(self.metric)}


def short(count: int) -> str:
    """1M, 20k."""
    return f"{count // 1_000_000}M" if count >= 1_000_000 else f"{count // 1000}k"


def _all() -> Iterable[Case]:
    yield Case("insert", "41B", 1_000_000, quick=True)
    yield Case("insert-batch", "41B", 1_000_000, quick=True)
    yield Case("uniform", "41B", 1_000_000, quick=True)
    yield Case("uniform", "28KB", 20_000, quick=True)
    yield Case("pair", "41B", 1_000_000, quick=True)
    yield Case("pair", "41B", 10_000_000)
    yield Case("pair-writer", "41B", 1_000_000, quick=True)
    for payload, capacity in (("41B", 100_000), ("28KB", 5_000)):
        yield Case("tcp-insert", payload, capacity, 4, quick=True)
        yield Case("tcp-sample", payload, capacity, 4, quick=True)
        yield Case("tcp-sample", payload, capacity, 0, quick=payload == "41B")
    yield Case("memory", "41B", 1_000_000, quick=True)
    yield Case("memory-stacks", "7KB", 20_000, quick=True)


CASES: dict[str, Case] = {case.name: case for case in _all()}

"""What the modes share: a full buffer, a batch compared to what was inserted, and a call repeated for some seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.pace import Reporter
from benchmarks.replay.adapters.base import Buffer

#: Seconds in which any system has filled a table of any case.
FILL = 90.0


class WrongItem(Exception):
    """A system returned something that nobody inserted."""


def fill(buffer: Buffer, report: Reporter) -> None:
    report.phase("fill", FILL)
    buffer.fill()


def check(buffer: Buffer) -> None:
    """Draw one batch and compare every row of it to what was inserted, byte for byte."""
    known = {buffer.payload.pack(item) for item in buffer.payload.samples()}
    columns = [np.asarray(leaf) for leaf in buffer.arrays(buffer.sample())]
    if {len(column) for column in columns} != {buffer.batch}:
        raise WrongItem(f"a batch of {sorted({len(column) for column in columns})} where {buffer.batch} were asked for")
    for i in range(buffer.batch):
        if b"".join(column[i].tobytes() for column in columns) not in known:
            raise WrongItem(f"row {i} of a batch was never inserted")


def repeat(call: Callable[[], Any], seconds: float, at_once: int = 1) -> tuple[int, float]:
    """Call for `seconds`: how many calls, and how long they took. The clock is read every `at_once` calls."""
    calls, count = range(at_once), 0
    start = now = perf_counter()
    end = start + seconds
    while now < end:
        for _ in calls:
            call()
        count += at_once
        now = perf_counter()
    return count, now - start


def waited_for_core() -> float:
    """Seconds for which this thread was ready to run and no core was free; 0 where the kernel does not tell (other than Linux)."""
    try:
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def on_core(work: Callable[[], tuple[int, float]]) -> tuple[int, float]:
    """The count that `work()` returns, and the seconds it took without those in which this thread waited for a core.

    Its own seconds are not used: the kernel may count a wait that began before them, which can be longer than a short `work`."""
    start, waited = perf_counter(), waited_for_core()
    count, _ = work()
    waited = waited_for_core() - waited
    return count, perf_counter() - start - waited

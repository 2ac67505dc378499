"""What a full table costs: the growth of the process's resident memory, over the number of items."""

from __future__ import annotations

import gc

import psutil

from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.replay.adapters.base import System
from benchmarks.replay.cases import BATCH, Case
from benchmarks.replay.items import ITEMS
from benchmarks.replay.modes.steps import check, fill


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    items = min(case.capacity, system.most_items)
    payload = ITEMS[case.payload]
    # A small one first: what the system takes once, however much it holds, is no item's.
    small = system.buffer(payload, 2 * BATCH, BATCH, case.prioritized)
    small.fill()
    check(small)
    gc.collect()
    before = psutil.Process().memory_info().rss
    buffer = system.buffer(payload, items, BATCH, case.prioritized)
    fill(buffer, report)
    gc.collect()
    after = psutil.Process().memory_info().rss
    check(buffer)
    return {"bytes_per_item": (after - before) / items, "items": items}

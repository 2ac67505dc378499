"""What a transition of stacked frames costs: each frame is in the stacks of five transitions, and should be stored once."""

from __future__ import annotations

import gc

import numpy as np
import psutil

from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.replay.adapters.base import EPISODE, Stacks, System
from benchmarks.replay.cases import Case
from benchmarks.replay.modes.steps import FILL, WrongItem

#: Frames in a stack.
DEPTH = 4

SHAPE = (84, 84)


def frame(number: int) -> np.ndarray:
    """A frame that tells its number by its first eight bytes; the rest is noise, which nobody compresses."""
    made = np.random.default_rng(number).integers(0, 256, SHAPE, np.uint8)
    made.reshape(-1)[:8] = np.frombuffer(np.int64(number).tobytes(), np.uint8)
    return made


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    items = min(case.capacity, system.most_items)
    small = system.stacks(EPISODE, DEPTH)  # what the system takes once, however much it holds, is no item's
    _fill(small, EPISODE)
    _check(small)
    gc.collect()
    before = psutil.Process().memory_info().rss
    report.phase("fill", FILL)
    buffer = system.stacks(items, DEPTH)
    _fill(buffer, items)
    gc.collect()
    after = psutil.Process().memory_info().rss
    _check(buffer)
    return {"bytes_per_item": (after - before) / items, "items": items}


def _fill(buffer: Stacks, transitions: int) -> None:
    for first in range(0, transitions, EPISODE):
        frames = [frame(number) for number in range(first, first + EPISODE + 1)]
        for number in range(EPISODE):
            buffer.add(frames[max(0, number - DEPTH + 1) : number + 1], frames[number + 1], number == EPISODE - 1)


def _check(buffer: Stacks) -> None:
    """Every row of a batch shows frames that follow each other, byte for byte; an episode's first stacks repeat its first frame."""
    stacks, following = (np.asarray(leaf) for leaf in buffer.sample(64))
    for stack, after in zip(stacks, following, strict=True):
        last = int.from_bytes(after[-1].tobytes()[:8], "little")
        start = (last - 1) // EPISODE * EPISODE
        for rows, end in ((stack, last - 1), (after, last)):
            shown = [max(start, number) for number in range(end - DEPTH + 1, end + 1)]
            if any((row != frame(number)).any() for row, number in zip(rows, shown, strict=True)):
                raise WrongItem(f"a stack that should end with frame {end} shows others")

"""cpprb: `ReplayBuffer` and `PrioritizedReplayBuffer` in one process, `MPPrioritizedReplayBuffer` beside a writer."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import cpprb
import numpy as np

from benchmarks.payloads import Payload
from benchmarks.processes import die_with
from benchmarks.replay.adapters.base import ALPHA, BETA, Buffer, Stacks, System
from benchmarks.replay.items import ITEMS


def layout(payload: Payload) -> dict[str, dict[str, Any]]:
    return {leaf.path[0]: {"shape": leaf.shape, "dtype": np.dtype(leaf.dtype)} for leaf in payload.leaves}


class CpprbBuffer(Buffer):
    def __init__(self, payload: Payload, capacity: int, batch: int, buffer: Any, prioritized: bool) -> None:
        super().__init__(payload, capacity, batch)
        self._buffer, self._names = buffer, [leaf.path[0] for leaf in payload.leaves]
        add = buffer.add
        self.add = self.extend = lambda items: add(**items)
        sample = buffer.sample
        self.sample = (lambda: sample(batch, beta=BETA)) if prioritized else (lambda: sample(batch))

    def pair(self, priorities: np.ndarray) -> None:
        drawn = self.sample()
        self._buffer.update_priorities(drawn["indexes"], priorities)

    def arrays(self, batch: Any) -> list[np.ndarray]:
        return [batch[name] for name in self._names]


class CpprbStacks(Stacks):
    """Frames shared between the stacks of one transition and of its neighbours (`next_of`, `stack_compress`)."""

    def __init__(self, items: int, depth: int) -> None:
        leaves = {leaf.path[0]: leaf for leaf in ITEMS["7KB"].leaves}
        layout = {name: {"shape": leaf.shape or 1, "dtype": np.dtype(leaf.dtype)} for name, leaf in leaves.items()}
        layout["frame"]["shape"] = (*leaves["frame"].shape, depth)
        shared = {"next_of": "frame", "stack_compress": "frame"}
        self._buffer, self._depth = cpprb.PrioritizedReplayBuffer(items, {**layout, "done": {}}, alpha=ALPHA, **shared), depth

    def add(self, stack: list[np.ndarray], following: np.ndarray, ended: bool) -> None:
        whole = [stack[0]] * (self._depth - len(stack)) + stack
        now, after = np.stack(whole, -1), np.stack([*whole[1:], following], -1)
        self._buffer.add(frame=now, next_frame=after, action=0, reward=0.0, done=ended)
        if ended:
            self._buffer.on_episode_end()

    def sample(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = self._buffer.sample(n, beta=BETA)
        return np.moveaxis(drawn["frame"], -1, 1), np.moveaxis(drawn["next_frame"], -1, 1)


def _write(buffer: Any, payload: Payload, parent: int, count: Any, go: Any) -> None:
    """The writer's process: single items as fast as they go in."""
    die_with(parent)
    items = payload.samples()
    go.wait()
    while True:
        for item in items:
            buffer.add(**item)
        count.value += len(items)


class SharedBuffer(CpprbBuffer):
    """The buffer for several processes, with one that writes."""

    def __init__(self, payload: Payload, capacity: int, batch: int) -> None:
        context = multiprocessing.get_context("fork")  # a fresh interpreter cannot be given cpprb's buffer
        buffer = cpprb.MPPrioritizedReplayBuffer(capacity, layout(payload), alpha=ALPHA, ctx=context)
        super().__init__(payload, capacity, batch, buffer, True)
        self._count, self._go = context.Value("q", 0), context.Event()
        self._writer = context.Process(target=_write, args=(buffer, payload, os.getpid(), self._count, self._go), daemon=True)
        self._writer.start()

    def begin(self) -> None:
        self._go.set()

    def inserted(self) -> int:
        return int(self._count.value)


class Cpprb(System):
    name = "cpprb"
    can = frozenset({"insert", "uniform", "prioritized", "writer", "memory", "stacks"})

    def stacks(self, items: int, depth: int) -> Stacks:
        return CpprbStacks(items, depth)

    def buffer(self, payload: Payload, capacity: int, batch: int, prioritized: bool) -> Buffer:
        if prioritized:
            return CpprbBuffer(payload, capacity, batch, cpprb.PrioritizedReplayBuffer(capacity, layout(payload), alpha=ALPHA), True)
        return CpprbBuffer(payload, capacity, batch, cpprb.ReplayBuffer(capacity, layout(payload)), False)

    def server(self, payload: Payload, capacity: int, batch: int, prioritized: bool, workers: int) -> Buffer:
        return SharedBuffer(payload, capacity, batch)

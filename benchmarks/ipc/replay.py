"""Rows for replay: added and sampled, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from echo_ipc import ReplayBuffer

from .cases import Case, rate
from .rivals import unilab

CAPACITY, OBS, ACTIONS = 1_000_000, 48, 12  # a row has 444 bytes
MUST = {"add 256": 2.5, "add 4096": 1.5, "sample 4096": 2.5}


def _batch(n: int) -> list[Any]:
    import torch

    return [torch.rand(n, OBS), torch.rand(n, ACTIONS), torch.rand(n), torch.rand(n, OBS), torch.zeros(n), torch.zeros(n)]


def replay() -> Iterator[Case]:
    import torch

    torch.set_num_threads(1)
    rival = unilab("replay_buffer")
    ours = ReplayBuffer(CAPACITY, OBS, ACTIONS, "cpu")
    theirs = rival and rival.ReplayBuffer(CAPACITY, OBS, ACTIONS, "cpu")
    part = _batch(CAPACITY // 10)
    for buffer in filter(None, (ours, theirs)):
        for _ in range(10):
            buffer.add(*part)
    for count in (256, 4096):
        some = _batch(count)
        added = rate(lambda some=some: ours.add(*some), count)
        sampled = rate(lambda count=count: ours.sample(count), count)
        rival_added = theirs and rate(lambda some=some: theirs.add(*some), count)
        rival_sampled = theirs and rate(lambda count=count: theirs.sample(count), count)
        for name, mine, other in ((f"add {count}", added, rival_added), (f"sample {count}", sampled, rival_sampled)):
            yield Case(name, "M rows/s", mine, other, MUST.get(name), scale=1e-6)
    ours.cleanup()

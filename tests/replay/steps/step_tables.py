"""Tables of items over steps for these tests, and what goes into them."""

from __future__ import annotations

from typing import Any

import numpy as np

from echo_core import Server, Table

STEP = {"obs": np.zeros(2, np.float32), "reward": np.float32(0)}


def step(shows: float) -> dict[str, Any]:
    return {"obs": np.full(2, shows, np.float32), "reward": np.float32(0.5 * shows)}


def serve(items: Any, capacity: int = 1000, batch_size: int = 4, **more: Any) -> Server:
    options = {"sampler": "uniform", "seed": 3, **more}
    return Server(tables=[Table("steps", STEP, capacity=capacity, items=items, **options)], batch_size=batch_size)


def episode(writer: Any, start: int, length: int, end: str = "terminated", stream: int = 0) -> None:
    for i in range(length):
        writer.send(step(start + i), end=end if i == length - 1 else None, stream=stream)


def most_claimed(capacity: int, width: int, open_episodes: int) -> int:
    """The most steps that a claim takes: `width` steps of each open episode and half of the table must not be under it."""
    return capacity - min(max(width * (open_episodes + 1), capacity // 2), capacity - 1)

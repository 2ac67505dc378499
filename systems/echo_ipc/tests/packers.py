"""Collectors for test_replay_pipelines.py. A module of its own, because spawned processes import it."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import numpy as np

from echo_ipc import ReplayBuffer

OBS, ACTION = 4, 2


def batch(first: int, n: int) -> dict[str, np.ndarray]:
    """All numbers of a row are those of its number."""
    numbers = np.arange(first, first + n, dtype=np.float32)
    wide = np.repeat(numbers[:, None], OBS, 1)
    return {"obs": wide, "actions": wide[:, :ACTION], "rewards": numbers, "next_obs": wide, "dones": numbers, "truncated": numbers}


def add_and_pack(replay: ReplayBuffer, requests: Any, ready: Any, slots: Any, stop: Any) -> None:
    from echo_ipc.replay_pipelines.collector import _service_collector_pack_requests

    pending = None
    for number in itertools.count(0, 16):
        if stop.is_set():
            return
        replay.add(**batch(number, 16))
        _, pending = _service_collector_pack_requests(replay, requests, ready, slots, pending)
        time.sleep(0.0005)


def die_at_a_request(requests: Any) -> None:
    requests.get()
    os._exit(5)


def add_for_ever(replay: ReplayBuffer, stop: Any) -> None:
    for number in itertools.count(0, 8):
        if stop.is_set():
            return
        replay.add(**batch(number, 8))

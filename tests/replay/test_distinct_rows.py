"""Batches of samplers that give every item once: also where rows are overwritten while they are gathered, and drawn anew alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from echo_core import EchoTimeoutError, MinSize, Table
from echo_core.base.errors import EchoError, PluginError
from echo_core.store.sampler import Keys, Priorities, Sampler
from echo_replay.tables.replay_table import ReplayTable

pytestmark = [pytest.mark.needs("echo-samplers")]

FRAME = {"number": np.int64(0), "frame": np.zeros(7000, np.uint8)}
CAPACITY, BATCH = 150, 128


class EachOnce(Sampler):
    """In Python, uniform without replacement."""

    storage = "replay"
    replacement = False

    @dataclass(frozen=True)
    class Options:
        capacity: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.held: dict[int, None] = {}

    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        self.held.update(dict.fromkeys(keys.tolist()))

    def delete(self, keys: Keys) -> None:
        for key in keys.tolist():
            del self.held[key]

    def update(self, keys: Keys, priorities: Priorities) -> None:
        pass

    def __len__(self) -> int:
        return len(self.held)

    def state(self) -> dict[str, np.ndarray]:
        return {"keys": np.array(list(self.held), np.uint64)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.held = dict.fromkeys(state["keys"].tolist())

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        keys = np.array(list(self.held), np.uint64)
        return rng.choice(keys, n, replace=False), np.full(n, 1 / len(keys))


class Inventor(EachOnce):
    """Draws a key that it does not hold."""

    replacement = True
    invented = 0

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        return np.full(n, self.invented, np.uint64), np.ones(n)


def frames(start: int, stop: int) -> dict[str, Any]:
    return {"number": np.arange(start, stop), "frame": np.full((stop - start, 7000), 1, np.uint8)}


@pytest.mark.parametrize("kind", ["uniform", "max_heap", "min_heap", "fifo", "python"])
def test_no_batch_has_an_item_twice_beside_a_writer(kind: str) -> None:
    sampler: Any = {"uniform": {"type": "uniform", "replacement": False}, "python": EachOnce(capacity=CAPACITY)}.get(kind, kind)
    table: ReplayTable = Table("t", FRAME, capacity=CAPACITY, sampler=sampler, rate_limiter=MinSize(1), max_times_sampled=3, seed=3).open(BATCH)
    table.submit_batch(frames(0, CAPACITY))
    stop = threading.Event()

    def write() -> None:
        number = CAPACITY
        while not stop.is_set():
            table.submit_batch(frames(number, number + 20))
            number += 20

    writer = threading.Thread(target=write)
    writer.start()
    try:
        deadline, batches, redrawn = time.monotonic() + 60, 0, 0
        while (batches < 50 or redrawn < 50) and time.monotonic() < deadline:
            try:
                sample = table.sample(timeout=1)
            except (EchoTimeoutError, EchoError):
                continue  # what was there is used up, and the writer has not had its turn
            batches, redrawn = batches + 1, sample.info.redrawn
            assert len(np.unique(sample.keys)) == BATCH == len(np.unique(sample.batch["number"]))
    finally:
        stop.set()
        writer.join()
        table.close()
    assert batches >= 50 and redrawn >= 50  # or nothing was tried


@pytest.mark.parametrize("uses", [0, 3])
def test_a_python_sampler_invents_no_key(uses: int) -> None:
    """One of a row that was never written, one of an item that is deleted, one outside."""
    sampler = Inventor(capacity=10)
    table: ReplayTable = Table("t", {"x": np.zeros(3)}, capacity=10, sampler=sampler, max_times_sampled=uses).open(2)
    keys = table.submit_batch({"x": np.zeros((4, 3))})
    table.delete(keys[1:2])
    for sampler.invented in (7, 1, 10, 1 << 40):
        with pytest.raises(EchoError, match=rf"Inventor drew key {sampler.invented}, which it does not hold"):
            table.sample(timeout=1)
    sampler.invented = 2
    assert table.sample(timeout=1).batch["x"].shape == (2, 3) and table.stats()["samples"] == 2


class Careless(EachOnce):
    """Returns what it is told to."""

    returned: Any = None

    def sample(self, n: int, rng: np.random.Generator) -> Any:
        return self.returned


class Forgetful(EachOnce):
    def __init__(self, **options: Any) -> None:
        self.held = {}


@pytest.mark.parametrize(
    ("returned", "got"),
    [
        ([0, 1], "list of 2"),
        (None, "NoneType"),
        (np.array([0, 1], np.uint64), "ndarray"),
        (([0, 1], [0.5, 0.5]), "(list, list)"),
        ((np.array([0, 1]), np.array([0.5, 0.5])), "(int64 of shape (2,), float64 of shape (2,))"),
        ((np.array([0, 1], np.uint64), np.array([0.5, 0.5], np.float32)), "(uint64 of shape (2,), float32 of shape (2,))"),
        ((np.array([0], np.uint64), np.array([0.5])), "(uint64 of shape (1,), float64 of shape (1,))"),
    ],
)
def test_what_a_python_sampler_has_to_return_is_said(returned: Any, got: str) -> None:
    sampler = Careless(capacity=10)
    sampler.returned = returned
    table: ReplayTable = Table("t", {"x": np.zeros(3)}, capacity=10, sampler=sampler).open(2)
    table.submit_batch({"x": np.zeros((4, 3))})
    with pytest.raises(PluginError) as caught:
        table.sample(timeout=1)
    assert str(caught.value) == (
        f"Careless.sample(2, rng) returned {got}; it has to return two numpy arrays of shape (2,): "
        "return np.array(keys, np.uint64), np.array(probabilities, np.float64)"
    )


def test_a_python_sampler_that_forgets_its_base_class_says_what_to_write() -> None:
    with pytest.raises(PluginError, match=r"Forgetful has no options, because its __init__ does not call .*super\(\).__init__\(\*\*options\)"):
        Table("t", {"x": np.zeros(3)}, capacity=10, sampler=Forgetful(capacity=10)).open(2)

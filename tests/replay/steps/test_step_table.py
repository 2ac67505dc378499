"""Tables of items over steps in one process: what a learner gets, and what that takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from step_tables import STEP, episode, serve, step

from echo_core import NStep, Sequences, Server, Slices, Table
from echo_core.base.errors import SpecError
from echo_core.store.sampler import Keys, Priorities, Sampler

pytestmark = pytest.mark.needs("echo-samplers")


def test_windows_in_a_batch() -> None:
    server = serve(Sequences(length=4, period=2, burn_in=2))
    episode(server.table().writer(), 1, 7)
    sample = server.sample(timeout=5, n=200)
    batch, info = sample
    assert batch["obs"].shape == (200, 6, 2) and batch["reward"].shape == sample.mask.shape == sample.ends.shape == (200, 6)
    assert sample.mask.dtype == np.bool_ and info.store_size == 3
    windows = {tuple(row) for row in batch["obs"][..., 0].astype(int).tolist()}
    # The burn-in of the first lies before the episode, the last one is cut short by its end.
    assert windows == {(0, 0, 1, 2, 3, 4), (1, 2, 3, 4, 5, 6), (3, 4, 5, 6, 7, 0)}
    np.testing.assert_array_equal(sample.mask, batch["obs"][..., 0] > 0)
    np.testing.assert_array_equal(sample.ends == 1, batch["obs"][..., 0] == 7)
    batch["obs"][:] = -1  # it is ours
    assert server.sample(timeout=5).batch["obs"].min() >= 0
    server.close()
    assert server.sample(timeout=5) is None


def test_one_step_of_each_environment_and_many_of_one() -> None:
    server = serve(NStep(2, gamma=0.5))
    writer = server.table().writer()
    for i in range(5):
        shows = np.arange(3, dtype=np.float32) * 100 + i
        ends = None if i < 4 else ["terminated", "truncated", None]
        writer.send_batch({"obs": np.repeat(shows, 2).reshape(3, 2), "reward": shows}, ends=ends)
    assert len(server.table()) == 5 + 4 + 3
    many = np.arange(4, dtype=np.float32) + 300
    writer.send_batch({"obs": np.repeat(many, 2).reshape(4, 2), "reward": many}, stream=3, ends=[None, None, None, "boundary"])
    sample, _ = server.table().peek(server.table().keys()[-3:])
    assert sample.batch["obs"][:, 0].tolist() == [300, 301, 302] and sample.next["obs"][:, 0].tolist() == [302, 303, 303]
    np.testing.assert_allclose(sample.returns, [300 + 150.5, 301 + 151, 302])
    wrong = {"2 steps sent with 1 end; give one end for each step": {"ends": [None]}, "none twice": {"streams": [1, 1]}, "65535": {"stream": -1}}
    wrong["either"] = {"stream": 0, "streams": [1, 2]}
    for why, arguments in wrong.items():
        with pytest.raises(ValueError, match=why):
            writer.send_batch({"obs": np.zeros((2, 2), np.float32), "reward": np.zeros(2, np.float32)}, **arguments)
    with pytest.raises(ValueError, match="'boundary'"):
        writer.send(step(1), end="done")
    with pytest.raises(ValueError, match="step of its own"):
        writer.end_episode("boundary")
    with pytest.raises(SpecError, match="obs"):
        writer.send({"obs": np.zeros(3, np.float32), "reward": np.float32(0)}, stream=2)
    assert server.stats()["table/steps/steps"] == 19  # nothing of these was taken, and stream 2 goes on
    writer.send(step(205), stream=2)
    assert len(server.table()) == 16 and server.stats()["table/steps/episodes"] == 3


def test_gaps_in_a_stream_end_its_episode() -> None:
    server = serve(NStep(1))
    table = server.table()
    for number in (0, 1, 2, 5, 6):
        table.submit({"echo": np.array([1 << 16, number << 8], np.uint64), "step": step(number)})
    sample, _ = table.peek(table.keys())
    assert sample.batch["obs"][:, 0].tolist() == [0, 1, 5] and sample.next["obs"][:, 0].tolist() == [1, 2, 6]
    assert table.stats()["truncated"] == 1


@pytest.mark.parametrize("items", [NStep(1), Sequences(4), Slices(3)])
def test_an_open_episode_that_was_overwritten_is_counted(items: Any) -> None:
    table = serve(items, capacity=50).table()
    slow, quick = table.writer(), table.writer()
    for i in range(10):
        slow.send(step(i))
    assert (table.stats()["streams"], table.stats()["truncated"]) == (1, 0)
    for i in range(60):
        quick.send(step(i))
    assert (table.stats()["streams"], table.stats()["episodes"], table.stats()["truncated"]) == (1, 1, 1)
    slow.send(step(10))
    assert (table.stats()["streams"], table.stats()["truncated"]) == (2, 1)


def test_items_have_keys_and_priorities() -> None:
    server = serve(NStep(1), sampler="prioritized")
    table = server.table()
    episode(table.writer(), 1, 10)
    keys = table.keys()
    assert len(keys) == 10 and table.top(1)[1] == pytest.approx(1)
    assert table.update_priorities(keys, np.where(keys == keys[6], 1e6, 1e-6)) == 0
    sample = server.sample(timeout=5)
    assert (sample.keys == keys[6]).all() and (sample.batch["obs"] == 7).all() and sample.weights.max() == 1
    assert table.delete(keys[5:]) == 5 and len(table) == 5
    assert table.update_priorities(keys, np.ones(10)) == 5
    _, here = table.peek(keys)
    assert here.tolist() == [True] * 5 + [False] * 5
    episode(table.writer(), 1, 1200)  # over all of them
    assert len(table) == 1000 and not table.peek(keys)[1].any()


def test_a_full_table_of_items_gives_some_up_before_their_steps() -> None:
    server = serve(Sequences(1, max_items=8), sampler="prioritized", remover="min_heap")
    table = server.table()
    episode(table.writer(), 1, 8)
    keys = table.keys()
    table.update_priorities(keys, np.arange(8.0) + 1)
    episode(table.writer(), 9, 3)
    left = table.keys()
    assert len(left) == 8 and set(keys[3:].tolist()) <= set(left.tolist()) and table.steps_held == 11
    assert table.stats()["evicted"] == 3


class Newest(Sampler):
    """The items that came last."""

    storage = "replay"

    @dataclass(frozen=True)
    class Options:
        capacity: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.held: list[int] = []

    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        self.held += keys.tolist()

    def delete(self, keys: Keys) -> None:
        gone = set(keys.tolist())
        self.held = [key for key in self.held if key not in gone]

    def update(self, keys: Keys, priorities: Priorities) -> None:
        pass

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        return np.array((self.held * n)[-n:], np.uint64), np.ones(n)

    def __len__(self) -> int:
        return len(self.held)

    def state(self) -> dict[str, Any]:
        return {"held": np.array(self.held, np.uint64)}

    def restore(self, state: Any) -> None:
        self.held = state["held"].tolist()


def test_a_sampler_written_in_python() -> None:
    server = serve(NStep(1), capacity=16, sampler=Newest(capacity=16))
    writer = server.table().writer()
    for start in range(1, 100, 5):
        episode(writer, start, 5)
        assert server.sample(timeout=5).batch["obs"][-1, 0] == start + 4


class Overtaken(Newest):
    """The item that came first. Steps that arrive during a draw may take its place."""

    meanwhile: Callable[[], None] | None = None

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        drawn = np.full(n, self.held[0], np.uint64)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return drawn, np.ones(n)


@pytest.mark.parametrize("items", [Sequences(4), NStep(1), Slices(4, by="episodes")], ids=lambda items: items.kind)
def test_an_item_that_goes_while_a_sampler_in_python_draws_it_is_drawn_again(items: Any) -> None:
    sampler = Overtaken(capacity=Table("steps", STEP, capacity=16, items=items, sampler="uniform").rows)
    server = serve(items, capacity=16, sampler=sampler)
    writer = server.table().writer()
    episode(writer, 1, 6)
    episode(writer, 100, 6, end=None, stream=1)
    sampler.meanwhile = lambda: episode(writer, 106, 12, end=None, stream=1)
    batch = server.sample(timeout=5).batch["obs"]
    assert sampler.meanwhile is None and (batch >= 100).all()


def test_memory_beside_storing_items_whole() -> None:
    """R2D2's windows: 80 steps that begin every 40. Whole they would be stored twice, with their burn-in two and a half times."""
    step_bytes, capacity = 84 * 84, 2000
    frame = {"frame": np.zeros((84, 84), np.uint8)}
    items = Sequences(80, period=40, burn_in=20, pad=False)
    with Server(tables=[Table("steps", frame, capacity=capacity, items=items, sampler="uniform")], batch_size=2) as server:
        table = server.table()
        table.writer().send_batch({"frame": np.zeros((capacity, 84, 84), np.uint8)}, stream=0)
        shared = capacity * step_bytes + table.overhead_bytes
        assert len(table) == (capacity - 80) // 40 + 1
        assert shared < 0.45 * len(table) * items.window * step_bytes
        assert table.overhead_bytes < 20 * capacity

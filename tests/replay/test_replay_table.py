"""Replay tables without a server: what a table promises, with native samplers and with one of pure Python."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from echo_core import ConfigError, EchoTimeoutError, MinSize, Queue, SampleToInsertRatio, SpecError, Stack, Table
from echo_core.base.errors import DuplicateKeyError, EchoError, FileWriteError
from echo_core.store.sampler import Keys, Priorities, Sampler
from echo_replay.tables.rate_limiters import RateLimiter
from echo_replay.tables.replay_table import ReplayTable

pytestmark = [pytest.mark.needs("echo-samplers")]

EXAMPLE = {"number": np.int64(0), "filler": np.zeros(5, np.float32)}


class Anyone(Sampler):
    """A third party's sampler: uniform, in Python. It refuses what a table must never tell it."""

    storage = "replay"

    @dataclass(frozen=True)
    class Options:
        capacity: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.held: dict[int, float] = {}

    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        for i, key in enumerate(keys.tolist()):
            assert key not in self.held and key < self.capacity
            self.held[key] = 1.0 if priorities is None else float(priorities[i])

    def delete(self, keys: Keys) -> None:
        for key in keys.tolist():
            del self.held[key]

    def update(self, keys: Keys, priorities: Priorities) -> None:
        for key, priority in zip(keys.tolist(), priorities.tolist()):
            assert key in self.held
            self.held[key] = priority

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        keys = np.array(list(self.held), np.uint64)
        return rng.choice(keys, n), np.full(n, 1 / len(keys))

    def __len__(self) -> int:
        return len(self.held)

    def state(self) -> dict[str, np.ndarray]:
        return {"keys": np.array(list(self.held), np.uint64)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.held = dict.fromkeys(state["keys"].tolist(), 1.0)


def item(number: int) -> dict:
    return {"number": np.int64(number), "filler": np.full(5, number, np.float32)}


def items(start: int, stop: int) -> dict:
    numbers = np.arange(start, stop)
    return {"number": numbers, "filler": np.repeat(numbers.astype(np.float32), 5).reshape(-1, 5)}


def make(batch_size: int = 4, capacity: int = 10, sampler: Any = "uniform", **options: Any) -> ReplayTable:
    if sampler == "python":
        sampler = Anyone(capacity=capacity)
    return Table("t", EXAMPLE, capacity=capacity, sampler=sampler, **options).open(batch_size)


def numbers(table: ReplayTable) -> list[int]:
    batch, here = table.peek(table.keys())
    assert here.all() and (batch["filler"] == batch["number"][:, None]).all()
    return batch["number"].tolist()


def whole(sample: Any) -> None:
    assert (sample.batch["filler"] == sample.batch["number"].astype(np.float32)[:, None]).all()


@pytest.fixture(params=["uniform", "python"])
def sampler(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_oldest_goes_when_it_is_full(sampler: str) -> None:
    table = make(sampler=sampler)
    for i in range(25):
        table.submit(item(i))
    assert numbers(table) == list(range(15, 25))
    table.submit_batch(items(100, 107))
    assert numbers(table) == [22, 23, 24, *range(100, 107)]
    assert set(table.sample(200).batch["number"].tolist()) == {22, 23, 24, *range(100, 107)}


def test_order_of_arrival_survives_deleting_in_the_middle(sampler: str) -> None:
    table = make(sampler=sampler)
    keys = table.submit_batch(items(0, 10))
    assert table.delete(keys[[2, 7, 7, 3]]) == 3
    assert table.delete(keys[[2]]) == 0
    assert numbers(table) == [0, 1, 4, 5, 6, 8, 9]
    for i in range(10, 16):
        table.submit(item(i))
    assert numbers(table) == [5, 6, *[8, 9], *range(10, 16)]
    whole(table.sample(50))
    assert len(table) == 10


def test_keys_are_never_used_again() -> None:
    table, seen = make(capacity=3), set()
    for i in range(2000):
        key = table.submit(item(i))
        assert key not in seen
        seen.add(key)
    assert set(table.keys().tolist()) <= seen
    batch, here = table.peek(np.array(sorted(seen), np.uint64))
    assert here.sum() == 3 and sorted(batch["number"][here]) == [1997, 1998, 1999]
    strange = np.array([0, 1, 2**64 - 1, 2**40, 7], np.uint64)
    assert not table.peek(strange)[1].any()
    assert table.update_priorities(strange, np.ones(5)) == 5 and table.delete(strange) == 0


def test_items_are_changed_in_place() -> None:
    table = make()
    keys = table.submit_batch(items(0, 10))
    fresh = {"number": np.array([50, 51]), "filler": np.array([[50.0] * 5, [51.0] * 5], np.float32)}
    assert table.update_items(keys[[1, 4]], fresh).tolist() == [True, True]
    assert numbers(table) == [0, 50, 2, 3, 51, 5, 6, 7, 8, 9]
    assert table.keys().tolist() == keys.tolist()
    with pytest.raises(SpecError, match="no leaf 'nope'"):
        table.update_items(keys[:1], {"nope": np.zeros(1)})
    with pytest.raises(SpecError, match="filler"):
        table.update_items(keys[:1], {"filler": np.zeros((1, 5))})
    assert not table.update_items(np.array([99], np.uint64), {"number": np.array([1])}).any()


def test_top_and_histogram_of_priorities() -> None:
    table = make(sampler="prioritized")
    keys = table.submit_batch(items(0, 10), priorities=np.arange(10) + 1.0)
    best, priorities = table.top(3)
    assert best.tolist() == keys[[9, 8, 7]].tolist() and priorities.tolist() == pytest.approx([10, 9, 8], rel=1e-6)
    assert table.priority_histogram(5)[0].sum() == 10
    with pytest.raises(EchoError, match="Python"):
        full = make(sampler="python")
        full.submit(item(1))
        full.top(1)


def test_items_go_after_so_many_samples(sampler: str) -> None:
    table = make(capacity=100, sampler=sampler, max_times_sampled=3, batch_size=10)
    table.submit_batch(items(0, 40))
    drawn = np.concatenate([table.sample(timeout=1).batch["number"] for _ in range(12)])
    assert np.bincount(drawn, minlength=40).tolist() == [3] * 40
    assert len(table) == 0
    with pytest.raises(EchoTimeoutError):
        table.sample(timeout=0)


@pytest.mark.parametrize(("name", "limiter", "order"), [("fifo", Queue(8), list(range(8))), ("lifo", Stack(8), list(range(8))[::-1])])
def test_queue_and_stack(name: str, limiter: RateLimiter, order: list[int]) -> None:
    table = make(batch_size=1, capacity=8, sampler=name, rate_limiter=limiter)
    for i in range(8):
        table.submit(item(i))
    with pytest.raises(EchoTimeoutError, match=r"8 inserts and 0 samples"):
        table.submit(item(8), timeout=0.01)
    assert table.stats()["blocked"] == "inserts"
    assert [int(table.sample(timeout=1).batch["number"][0]) for _ in range(8)] == order
    with pytest.raises(EchoTimeoutError, match="no batch of 1"):
        table.sample(timeout=0.01)
    assert table.stats()["blocked"] == "samples"


def test_the_ratio_is_reverbs() -> None:
    """SampleToInsertRatio(4, 100, 50): 112 inserts pass and the 113th waits; it passes once two samples were taken, and 102 are in all."""
    table = make(batch_size=1, capacity=1000, rate_limiter=SampleToInsertRatio(4, 100, 50))
    with pytest.raises(EchoTimeoutError):
        table.sample(timeout=0)
    for i in range(112):
        table.submit(item(i), timeout=0)
    with pytest.raises(EchoTimeoutError):
        table.submit(item(112), timeout=0)
    waiting = threading.Thread(target=lambda: table.submit(item(112), timeout=20))
    waiting.start()
    table.sample(timeout=0)
    table.sample(timeout=0)
    waiting.join()
    assert table.counters()["inserts"] == 113
    for _ in range(100):
        table.sample(timeout=0)
    with pytest.raises(EchoTimeoutError):
        table.sample(timeout=0)
    assert table.counters()["samples"] == 102


@pytest.mark.parametrize("seed", range(5))
def test_the_limiter_answers_as_its_formulas(seed: int) -> None:
    """Against the two formulas, spelled out, for whole and broken ratios; a run is let in as far as they go."""
    rng = np.random.default_rng(seed)
    r, k = float(rng.choice([0.3, 0.5, 1, 2.5, 4])), int(rng.integers(1, 30))
    limiter = SampleToInsertRatio(r, k, float(rng.integers(2, 20)) + 2 * max(1, r))
    _, low, high, _ = limiter.numbers()
    table = make(batch_size=1, capacity=10_000, rate_limiter=limiter)
    inserts = samples = 0
    for _ in range(600):
        n = int(rng.integers(1, 9))
        if rng.random() < 0.6:
            fits = [m for m in range(1, n + 1) if inserts + m <= k or (inserts + m) * r - samples <= high]
            try:
                table.submit_batch(items(0, n), timeout=0)
                got = n
            except EchoTimeoutError as error:
                got = error.inserted
            assert got == max(fits, default=0)
            inserts += got
        else:
            may = inserts >= k and inserts * r - samples - n >= low and inserts > 0
            try:
                table.sample(n, timeout=0)
                got = n
            except (EchoTimeoutError, ValueError):
                got = 0
            assert got == (n if may else 0)
            samples += got


def test_reproducible_from_its_seed() -> None:
    def play(seed: int) -> list[int]:
        table = make(sampler="prioritized", capacity=50, seed=seed)
        table.submit_batch(items(0, 80))
        out: list[int] = []
        for _ in range(5):
            sample = table.sample()
            table.update_priorities(sample.keys, sample.batch["number"] % 7 + 1.0)
            out += sample.batch["number"].tolist()
        return out

    assert play(5) == play(5) != play(6)


def test_weights_make_the_mean_unbiased() -> None:
    table = make(sampler="prioritized", capacity=20, batch_size=4000, seed=1)
    keys = table.submit_batch(items(0, 20))
    table.update_priorities(keys, np.arange(20) + 1.0)
    sample = table.sample(beta=1.0)
    scale = 1 / (20 * sample.probabilities.min())
    mean = float((sample.weights.astype(float) * scale * sample.batch["number"]).mean())
    assert abs(mean - 9.5) < 0.6  # the plain mean is near 13
    assert 1000 < sample.info.effective_sample_size < 4000
    assert (table.sample(beta=0.0).weights == 1).all()
    for wrong in (2, -1, float("nan")):
        with pytest.raises(ValueError, match="beta must be from 0 to 1"):
            table.beta = wrong
    table.beta = 0.5
    half = table.sample()
    assert half.weights == pytest.approx((half.probabilities.min() / half.probabilities) ** 0.5, rel=1e-4)


def test_batches_outlive_the_table_and_do_not_change() -> None:
    table = make(capacity=100, batch_size=32)
    table.submit_batch(items(0, 100))
    held = [table.sample() for _ in range(20)]
    before = [sample.batch["number"].copy() for sample in held]
    table.submit_batch(items(1000, 1100))
    for _ in range(50):
        table.sample()
    assert table.sample().info.leases_held == 21
    table.close()
    assert table.sample() is None
    del table
    for sample, numbers_before in zip(held, before):
        assert (sample.batch["number"] == numbers_before).all()
        whole(sample)
        assert sample.keys.shape == (32,)


def test_writers_and_learners_together(sampler: str) -> None:
    table = make(capacity=64, batch_size=32, sampler=sampler)
    table.submit_batch(items(0, 64))
    stop, failures = threading.Event(), []

    def write(start: int) -> None:
        try:
            number = start
            while not stop.is_set():
                table.submit_batch(items(number, number + 7))
                number += 7
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(10_000 * w,)) for w in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(300):
        sample = table.sample(timeout=10)
        whole(sample)
        table.update_priorities(sample.keys, np.full(32, turn + 1.0))
        table.delete(sample.keys[:1])
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    table.sample()
    assert len(table.sampler) == len(table)


def test_a_python_samplers_log_stays_short() -> None:
    table = make(capacity=5, sampler="python")
    for _ in range(3000):
        table.submit_batch(items(0, 7))
    whole(table.sample())
    assert sorted(table.sampler.held) == [0, 1, 2, 3, 4]


class Fleeting(Anyone):
    """Its table's items go, or it fails, just after it drew of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.after: list[Any] = []

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        drawn = super().sample(n, rng)
        if self.after:
            self.after.pop(0)()
        return drawn


def test_a_batch_that_came_to_nothing_was_no_batch() -> None:
    sampler = Fleeting(capacity=10)
    table = make(sampler=sampler, rate_limiter=SampleToInsertRatio(1, 1, 100), seed=3)
    table.submit_batch(items(0, 10))
    sampler.after.append(lambda: table.delete(table.keys()))
    with pytest.raises(EchoTimeoutError):
        table.sample(4, timeout=0.1)
    assert table.counters()["samples"] == table.counters()["drawn_batches"] == len(table) == 0

    def fail() -> None:
        raise ZeroDivisionError

    table.submit_batch(items(10, 20))
    sampler.after += [lambda: table.delete(table.keys()[:9]), fail]  # with this seed one of the nine is drawn
    with pytest.raises(ZeroDivisionError):
        table.sample(4, timeout=0.1)
    assert table.counters()["samples"] == table.counters()["drawn_batches"] == 0
    assert table.sample(4).batch["number"].tolist() == [19] * 4
    assert table.counters()["samples"] == 4


def test_a_python_sampler_that_was_interrupted_is_told_again() -> None:
    class Interrupted(Anyone):
        calls = 0

        def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
            self.calls += 1
            if known := self.held.keys() & set(keys.tolist()):
                raise DuplicateKeyError(f"keys {known} are there")
            if self.calls == 2:
                super().insert(keys[: len(keys) // 2], None if priorities is None else priorities[: len(keys) // 2])
                raise KeyboardInterrupt
            super().insert(keys, priorities)

    table = make(capacity=10, sampler=Interrupted(capacity=10), seed=2)
    table.submit_batch(items(0, 10))
    table.sample(4)
    table.submit_batch(items(10, 16))  # six go, six come: of whom it is told three
    with pytest.raises(KeyboardInterrupt):
        table.sample(4)
    table.submit_batch(items(16, 20))
    for _ in range(20):
        whole(table.sample(4))
    assert sorted(table.sampler.held) == [*range(10)]
    assert table.delete(table.keys()) == 10 and not table.stats()["size"]


class InTurn(Fleeting):
    """The oldest first, each once in a batch."""

    replacement = False

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        keys = np.array(list(self.held)[:n], np.uint64)
        if self.after:
            self.after.pop(0)()
        return keys, np.full(n, 1 / len(self.held))


def test_no_item_of_a_queue_is_lost_when_another_of_its_batch_is_deleted() -> None:
    sampler = InTurn(capacity=10)
    table = make(sampler=sampler, rate_limiter=Queue(10))
    keys = table.submit_batch(items(0, 10))
    sampler.after.append(lambda: table.delete(keys[1:2]))
    first, second = table.sample(4, timeout=5), table.sample(4, timeout=5)
    whole(first), whole(second)
    assert sorted([*first.batch["number"].tolist(), *second.batch["number"].tolist()]) == [0, 2, 3, 4, 5, 6, 7, 8]


def test_storage_in_a_file(tmp_path: Any) -> None:
    table = make(capacity=50, storage=tmp_path / "rows")
    table.submit_batch(items(0, 70))
    assert numbers(table) == list(range(20, 70))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileWriteError, match="taken: File exists"):
        (tmp_path / "taken").write_text("mine")
        make(storage=tmp_path / "taken")


def test_a_byte_budget() -> None:
    assert make(capacity=1000, max_bytes=28 * 40).capacity == 40
    with pytest.raises(ConfigError, match="too small for one item"):
        make(max_bytes=27)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="printable"):
        Table("", EXAMPLE, capacity=1, sampler="uniform")
    with pytest.raises(ConfigError, match="capacity"):
        Table("t", EXAMPLE, capacity=0, sampler="uniform")
    with pytest.raises(ConfigError, match="waits for 20 items"):
        make(capacity=10, rate_limiter=MinSize(20))
    with pytest.raises(ConfigError, match="error buffer"):
        SampleToInsertRatio(4, 100, 3)
    with pytest.raises(ConfigError, match="written in Python"):
        make(capacity=10, remover=Anyone(capacity=10))
    with pytest.raises(ConfigError, match="same capacity"):
        make(capacity=10, sampler=Anyone(capacity=11))
    from echo_samplers.prioritized import Prioritized

    reckless = Prioritized(capacity=10, eps=0.0)
    reckless.refuses_zero = False
    table = make(sampler=reckless, capacity=10)
    table.submit_batch(items(0, 4), priorities=np.zeros(4))
    with pytest.raises(EchoError, match="every priority is 0"):
        table.sample(timeout=1)
    with pytest.raises(ValueError, match="sample 1 must be finite"):
        table.submit_batch(items(0, 2), priorities=[1.0, np.nan])

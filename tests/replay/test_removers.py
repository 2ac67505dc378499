"""Every sampler as the remover: which item leaves a full table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echo_core import ConfigError, Table
from echo_core.plugins import discovery
from echo_core.plugins.sampler_choice import make_sampler
from echo_replay.tables.replay_table import ReplayTable

pytestmark = [pytest.mark.needs("echo-samplers")]

EXAMPLE = {"number": np.int64(0)}
PRIORITIES = np.array([5.0, 1.0, 7.0, 3.0, 9.0, 2.0])
ORDERED = {"fifo": [0, 1, 2, 3], "lifo": [5, 6, 7, 8], "min_heap": [1, 5, 3, 6], "max_heap": [4, 2, 0, 6]}


def full(remover: Any, sampler: Any = "uniform", priorities: np.ndarray = PRIORITIES, **options: Any) -> ReplayTable:
    table = Table("t", EXAMPLE, capacity=len(priorities), sampler=sampler, remover=remover, seed=1, **options).open(2)
    table.submit_batch({"number": np.arange(len(priorities))}, priorities=priorities)
    return table


def gone(table: ReplayTable, times: int, priority: float = 4.0) -> list[int]:
    """The numbers of the items that make room for `times` more, one by one."""
    out = []
    for number in range(len(table), len(table) + times):
        before = table.peek(table.keys())[0]["number"].tolist()
        table.submit({"number": np.int64(number)}, priority=priority)
        after = table.peek(table.keys())[0]["number"].tolist()
        (went,) = set(before) - set(after)
        assert set(after) == set(before) - {went} | {number}, "one item goes for each that comes"
        out.append(went)
    return out


@pytest.mark.parametrize("remover", list(ORDERED))
@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "fifo"])
def test_one_that_draws_in_an_order_removes_in_it(remover: str, sampler: str) -> None:
    table = full(remover, sampler)
    assert gone(table, 4) == ORDERED[remover]
    assert len(table) == 6 and set(table.sample(timeout=1).keys.tolist()) <= set(table.keys().tolist())


@pytest.mark.parametrize(("remover", "expected"), [("uniform", np.full(6, 1 / 6)), ({"type": "prioritized", "alpha": 1.0}, PRIORITIES / 27)])
def test_one_that_draws_at_random_removes_as_often(remover: Any, expected: np.ndarray) -> None:
    turns, counts = 2000, np.zeros(6)
    table = Table("t", EXAMPLE, capacity=6, sampler="uniform", remover=remover, seed=3).open(2)
    for _ in range(turns):
        keys = table.submit_batch({"number": np.arange(6)}, priorities=PRIORITIES)
        table.submit({"number": np.int64(6)}, priority=4.0)
        counts[~table.peek(keys)[1]] += 1
        table.delete(table.keys())
    assert counts.sum() == turns
    statistic = float((np.square(counts - turns * expected) / (turns * expected)).sum())
    assert statistic < 5 + 6 * 10**0.5, counts  # chi-square of five degrees of freedom


def test_updated_priorities_decide_who_goes() -> None:
    table = full("min_heap", "prioritized")
    table.update_priorities(table.keys()[[1, 4]], [8.0, 0.5])
    assert gone(table, 2) == [4, 5]


def test_hot_cold_gives_up_the_least_valuable() -> None:
    options = {"type": "hot_cold", "hot_capacity": 2, "hot_ratio": 0.5}
    # As sampler and remover at once; beside another sampler it draws who goes, as any other does.
    table = full("hot_cold", options)
    assert gone(table, 3, priority=6.0) == [1, 5, 3]
    assert len(full(options, "uniform")) == 6
    # As a configuration writes it, too.
    for remover in ({"type": "hot_cold"}, options):
        assert gone(full(remover, options), 3, priority=6.0) == [1, 5, 3]


def test_the_same_name_for_both_is_two_of_a_kind() -> None:
    table = full("lifo", "lifo")
    assert gone(table, 2) == [5, 6]
    assert table.sample(1, timeout=1).batch["number"].tolist() == [7]


@pytest.mark.parametrize("remover", ["fifo", "lifo", "uniform", "prioritized", "min_heap", "max_heap", "hot_cold"])
def test_every_native_sampler_can_remove_under_load(remover: str) -> None:
    table = Table("t", EXAMPLE, capacity=100, sampler="prioritized", remover=remover, seed=2).open(8)
    rng = np.random.default_rng(0)
    for start in range(0, 3000, 30):
        table.submit_batch({"number": np.arange(start, start + 30)}, priorities=rng.random(30) + 0.1)
        if start >= 100:
            table.delete(rng.choice(table.keys(), 3, replace=False))
            sample = table.sample(timeout=1)
            table.update_priorities(sample.keys, rng.random(8) + 0.1)
    assert 90 <= len(table) <= 100 and len(np.unique(table.keys())) == len(table)
    counters = table.counters()
    assert counters["inserts"] == 3000 == len(table) + counters["evicted"] + counters["deleted"]


def test_where_every_priority_is_zero_the_oldest_goes() -> None:
    table = full({"type": "prioritized", "eps": 0.0}, "uniform", np.zeros(6))
    assert gone(table, 3, priority=0.0) == [0, 1, 2]


def test_one_object_cannot_be_both_unless_it_evicts() -> None:
    for name in ("uniform", "fifo", "min_heap"):
        both = make_sampler(name, discovery.default, 6)
        with pytest.raises(ConfigError, match="'t': one .* object cannot be both sampler and remover; .*two objects"):
            full(both, both)
    both = make_sampler({"type": "hot_cold", "hot_capacity": 2, "hot_ratio": 0.5}, discovery.default, 6)
    assert gone(full(both, both), 3, priority=6.0) == [1, 5, 3]


def test_one_that_nobody_installed_is_refused_by_name() -> None:
    with pytest.raises(discovery.PluginError, match="lifoo.*did you mean 'lifo'"):
        full("lifoo")
    with pytest.raises(ConfigError, match="hot_ratio"):
        full({"type": "hot_cold", "hot_ratio": 2.0})

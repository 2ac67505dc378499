"""The version of the policy with every row: kept, told, dropped or weighed by how far it lags behind."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from echo_core import ConfigError, Server, Table
from echo_replay.tables.replay_table import ReplayTable

pytestmark = pytest.mark.needs("echo-samplers")

EXAMPLE = {"number": np.int64(0), "filler": np.zeros(5, np.float32)}
FRAMES = {"number": np.int64(0), "frame": np.zeros((30, 30), np.uint8)}  # one array for each leaf, where EXAMPLE is packed


def items(start: int, stop: int, example: dict = EXAMPLE) -> dict:
    numbers = np.arange(start, stop)
    fill = {name: np.zeros((stop - start, *leaf.shape), leaf.dtype) for name, leaf in example.items()}
    return {**fill, "number": numbers}


def make(capacity: int = 1000, sampler: str = "uniform", example: dict = EXAMPLE, **options: object) -> Server:
    return Server(tables=[Table("replay", example, capacity=capacity, sampler=sampler, seed=1, **options)], batch_size=64)


@pytest.mark.parametrize("example", [EXAMPLE, FRAMES], ids=["packed", "frames"])
@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "fifo"])
def test_a_batch_tells_which_policy_made_each_row(sampler: str, example: dict) -> None:
    server = make(sampler=sampler, policy_versions=True, example=example)
    for version in (3, 1, 7):
        server.submit_batch(items(version * 100, version * 100 + 100, example), policy_version=version)
    batch, info = server.sample()
    assert info.policy_versions.dtype == np.uint64
    assert (info.policy_versions == batch["number"] // 100).all()
    versions, counts = server.table().policy_versions()
    assert versions.tolist() == [1, 3, 7] and counts.tolist() == [100] * 3


def test_without_being_asked_a_table_keeps_no_versions() -> None:
    server = make()
    server.submit_batch(items(0, 100))
    assert server.sample().info.policy_versions is None
    with pytest.raises(ValueError, match="policy_versions=True"):
        server.table().policy_versions()
    assert not any("lag" in name for name in server.stats())


def test_samples_of_this_process_are_of_the_version_published_last() -> None:
    server = make(policy_versions=True)
    server.submit(EXAMPLE)
    server.publish({"w": np.zeros(3)})
    server.submit(EXAMPLE)
    server.submit(EXAMPLE, policy_version=0)
    assert server.table().policy_versions()[0].tolist() == [0, 1]
    assert server.table().policy_versions()[1].tolist() == [2, 1]


@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "min_heap", "hot_cold"])
def test_rows_that_lag_too_far_go(sampler: str) -> None:
    server = make(sampler=sampler, max_policy_lag=2)
    table = server.table()
    keys = {v: server.submit_batch(items(v * 10, v * 10 + 10), policy_version=v) for v in range(6)}
    table.policy_version = 5
    assert len(table) == 30 == len(table.sampler)
    here = {v: table.peek(k)[1].all() for v, k in keys.items()}
    assert here == {0: False, 1: False, 2: False, 3: True, 4: True, 5: True}
    assert (server.sample(10, n=16).info.policy_versions >= 3).all()
    gone = server.submit(EXAMPLE, policy_version=2)
    assert len(table) == 30 and not table.peek([gone])[1].any()
    stats = server.stats()
    assert stats["table/replay/stale"] == 31 and stats["table/replay/policy_version"] == 5
    # The rows are used again, and full tables go on evicting.
    server.submit_batch(items(0, 1500), policy_version=6)
    assert len(table) == 1000


def test_whatever_happens_to_rows_the_index_of_versions_keeps_up() -> None:
    rng = np.random.default_rng(3)
    server = make(capacity=50, sampler="prioritized", remover="uniform", policy_versions=True)
    table, truth = server.table(), {}
    for step in range(600):
        version = int(rng.integers(0, 9))
        truth[table.submit(EXAMPLE, policy_version=version)] = version
        if step % 7 == 0:
            table.delete(rng.choice(table.keys(), 2))
        left = table.keys().tolist()
        truth = {key: truth[key] for key in left}
        versions, counts = table.policy_versions()
        assert dict(zip(versions.tolist(), counts.tolist())) == {v: list(truth.values()).count(v) for v in set(truth.values())}


def test_items_sampled_for_the_last_time_leave_the_index() -> None:
    server = make(sampler="fifo", remover="fifo", max_times_sampled=1, max_policy_lag=1)
    server.submit_batch(items(0, 128), policy_version=0)
    assert (server.sample().info.policy_versions == 0).all()
    assert server.table().policy_versions()[1].tolist() == [64]
    server.table().policy_version = 9
    assert len(server.table()) == 0 and server.stats()["table/replay/stale"] == 64


def test_weights_fade_with_the_lag() -> None:
    server = make(lag_weight=0.5)
    for version in range(5):
        server.submit_batch(items(0, 100), policy_version=version)
    server.table().policy_version = 3
    sample = server.sample()
    lag = np.maximum(3 - sample.info.policy_versions.astype(np.int64), 0)  # 4 is above the newest: no lag
    np.testing.assert_allclose(sample.weights, 0.5**lag, rtol=1e-6)
    assert len(set(lag.tolist())) == 4


def test_the_histogram_of_lags_in_the_figures() -> None:
    server = make(policy_versions=True)
    for version, n in ((20, 1), (19, 2), (18, 3), (17, 4), (13, 5), (10, 6)):
        server.submit_batch(items(0, n), policy_version=version)
    server.table().policy_version = 20
    figures = {name.split("/")[-1]: value for name, value in server.stats().items() if "lag" in name}
    counts = {"lag_0": 1, "lag_1": 2, "lag_2_3": 7, "lag_4_7": 5, "lag_8_15": 6}
    assert figures == {"policy_lag_mean": (2 + 6 + 12 + 35 + 60) / 21, "policy_lag_max": 10, **counts}


def test_versions_outlive_a_restart(tmp_path: Path) -> None:
    server = make(max_policy_lag=5)
    for _ in range(4):
        server.publish({"w": np.zeros(1)})
        server.submit_batch(items(0, 10))
    server.checkpoint(tmp_path)
    again = make(max_policy_lag=5).restore(tmp_path)
    assert again.table().policy_version == 4
    assert again.table().policy_versions()[0].tolist() == [1, 2, 3, 4]
    assert again.publish({"w": np.zeros(1)}).version == 5


def test_while_others_write_and_publish_no_batch_has_a_row_too_old() -> None:
    server = make(capacity=4000, max_policy_lag=3, example=FRAMES)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            newest = server.table().policy_version
            n = newest * 1000
            server.submit_batch(items(n, n + 50, FRAMES), policy_version=newest)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for version in range(1, 60):
            server.table().policy_version = version
            before = server.table().policy_version
            batch, info = server.sample(timeout=30)
            assert (info.policy_versions.astype(np.int64) >= before - 3).all()
            assert (batch["number"] // 1000 == info.policy_versions.astype(np.int64)).all()
    finally:
        stop.set()
        for writer in writers:
            writer.join()


@pytest.mark.parametrize(
    "options", [{"max_policy_lag": -1}, {"max_policy_lag": 1.5}, {"lag_weight": 0}, {"lag_weight": 1.1}, {"lag_weight": np.nan}]
)
def test_nonsense_is_refused(options: dict) -> None:
    with pytest.raises(ConfigError, match=r"'replay'.*(max_policy_lag|lag_weight)"):
        make(**options)
    with pytest.raises(ValueError, match="policy_version"):
        make(policy_versions=True).submit(EXAMPLE, policy_version=-1)


def test_of_two_who_publish_at_once_the_last_wins() -> None:
    """The first has many rows to let go of, and is not done when the second has nothing left to do."""
    for turn in range(20):
        table = make(capacity=100_000, max_policy_lag=0).table()
        table.submit_batch(items(0, 100_000))

        def first(table: ReplayTable = table) -> None:
            table.policy_version = 1

        other = threading.Thread(target=first)
        other.start()
        while not table.stats()["stale"]:
            pass
        table.policy_version = 2
        other.join()
        assert table.policy_version == 2 and len(table) == 0, turn

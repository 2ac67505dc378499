"""A learner draws from shards as from one table, and goes on while one of them is away."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from echo_cluster import ClusterLearner, LocalCluster
from echo_cluster.members import Member, find_members
from echo_core import Client, ClosedError, EchoTimeoutError, SecurityError, Table

EXAMPLE = {"id": np.zeros((), np.int64), "x": np.zeros(4, np.float32)}
ITEMS = (40, 160)


def fill(cluster: LocalCluster, number: int, first: int, n: int) -> None:
    """Send n items whose priority is 1 + id % 7."""
    ids = np.arange(first, first + n)
    with Client(cluster.wait(number).addresses[0], EXAMPLE, token=cluster.token) as client:
        client.send_batch({"id": ids, "x": np.zeros((n, 4), np.float32)}, priorities=1.0 + ids % 7)
        client.wait()


def wait_for_checkpoint(cluster: LocalCluster, number: int) -> None:
    """Wait until a checkpoint has been begun and completed from now on."""
    latest = cluster.folder / f"checkpoint-{number}" / "LATEST"
    ends = time.monotonic() + 60
    for _ in range(2):  # the first may have been under way already
        before = text = latest.read_text() if latest.exists() else ""
        while text == before:
            assert time.monotonic() < ends
            time.sleep(0.02)
            text = latest.read_text() if latest.exists() else ""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    table = Table("replay", EXAMPLE, sampler={"type": "prioritized", "alpha": 1.0}, capacity=1000)
    with LocalCluster(2, [table], checkpoint_every=0.5) as cluster:
        fill(cluster, 0, 0, ITEMS[0])
        fill(cluster, 1, ITEMS[0], ITEMS[1])
        yield cluster


def test_probabilities_are_those_of_one_table(cluster: LocalCluster) -> None:
    priorities = 1.0 + np.arange(sum(ITEMS)) % 7
    truth = priorities / priorities.sum()
    drawn = np.zeros(sum(ITEMS))
    with ClusterLearner(cluster.members, EXAMPLE, token=cluster.token, seed=3) as learner:
        assert [shard.state for shard in learner.shards] == ["up", "up"]
        for _ in range(200):
            sample = learner.sample(128, beta=0.5)
            np.testing.assert_allclose(sample.probabilities, truth[sample.batch["id"]], rtol=1e-4)
            assert sample.info.store_size == sum(ITEMS) and not sample.info.degraded
            drawn += np.bincount(sample.batch["id"], minlength=sum(ITEMS))
        np.testing.assert_allclose(sample.weights, (sample.probabilities.min() / sample.probabilities) ** 0.5, rtol=1e-5)
        expected = truth * drawn.sum()
        statistic, freedom = float(((drawn - expected) ** 2 / expected).sum()), sum(ITEMS) - 1
        assert statistic < freedom + 5 * (2 * freedom) ** 0.5, "five deviations above chance"
        learner._end()  # the job goes on for the other tests


def test_priorities_go_back_to_their_shard(cluster: LocalCluster) -> None:
    learner = ClusterLearner(cluster.members, EXAMPLE, token=cluster.token, seed=3)
    sample = learner.sample(64)
    assert set(sample.info.shards) == {0, 1}
    assert learner.update_priorities(sample.keys, 1.0 + sample.batch["id"] % 7) == 0
    former = sample.keys.copy()
    former["life"] += 1
    assert learner.update_priorities(former, np.full(64, 1e9)) == 64, "keys of another life name nothing"
    assert learner.sample(64).probabilities.max() < 0.1
    with pytest.raises(ValueError, match="shape of the keys"):
        learner.update_priorities(sample.keys, [1.0])
    batches = learner.dataset_iter(32, prefetch=2)
    assert {len(next(batches).keys) for _ in range(5)} == {32}
    batches.close()
    learner._end()
    with pytest.raises(ClosedError):
        learner.sample(1)


def test_a_paused_shard_is_left_out_and_comes_back(cluster: LocalCluster) -> None:
    learner = ClusterLearner(cluster.members, EXAMPLE, token=cluster.token, patience=0.5)
    cluster.pause(1)
    try:
        sample = learner.sample(64)
        assert sample.info.degraded and set(sample.info.shards) == {0} and (sample.batch["id"] < ITEMS[0]).all()
        priorities = 1.0 + np.arange(ITEMS[0]) % 7
        np.testing.assert_allclose(sample.probabilities, (priorities / priorities.sum())[sample.batch["id"]], rtol=1e-4)
    finally:
        cluster.resume(1)
    ends = time.monotonic() + 60
    while set(learner.sample(64).info.shards) != {0, 1}:
        assert time.monotonic() < ends, learner.shards
    learner._end()


def test_a_killed_shard_is_left_out_and_comes_back_with_its_checkpoint(cluster: LocalCluster) -> None:
    learner = ClusterLearner(cluster.members, EXAMPLE, token=cluster.token, patience=0.5)
    former = learner.sample(64).keys
    wait_for_checkpoint(cluster, 1)
    cluster.kill(1)
    for _ in range(20):
        assert set(learner.sample(64, timeout=30).info.shards) <= {0, 1}
    assert learner.update_priorities(former, np.ones(64)) == int((former["shard"] == 1).sum())
    cluster.restart(1)
    ends = time.monotonic() + 60
    while set((sample := learner.sample(64)).info.shards) != {0, 1}:
        assert time.monotonic() < ends, learner.shards
    assert sample.info.store_size == sum(ITEMS)
    assert learner.update_priorities(former[former["shard"] == 1], np.ones(int((former["shard"] == 1).sum()))) == (former["shard"] == 1).sum()
    assert learner.stats()["batches_degraded"] > 0
    learner._end()


UNCLOSED = """
import concurrent.futures.thread, sys, time
import numpy as np
from echo_cluster import ClusterLearner
address, token = sys.argv[1:]
learner = ClusterLearner([address], {"id": np.zeros((), np.int64), "x": np.zeros(4, np.float32)}, token=token)
assert len(learner.sample(4).batch["id"]) == 4
concurrent.futures.thread._python_exit()  # the interpreter calls this at its end, while the learner's thread runs on
learner._upkeep.ask_now()
time.sleep(0.5)
"""


def test_a_program_that_ends_without_closing_its_learner_says_nothing(cluster: LocalCluster) -> None:
    address = str(cluster.wait(0).addresses[0])
    done = subprocess.run([sys.executable, "-c", UNCLOSED, address, cluster.token], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_members_that_cannot_be_found_for_a_while_stop_no_learner(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    known, fails, asked = find_members(cluster.members)(), threading.Event(), threading.Semaphore(0)

    def find() -> list[Member]:
        if fails.is_set():
            asked.release()
            raise RuntimeError("a fault of the function")
        return known

    with ClusterLearner(find, EXAMPLE, token=cluster.token) as learner:
        fails.set()
        for _ in range(2):
            assert asked.acquire(timeout=30), "it asks again"
        assert learner.sample(8).info.store_size == sum(ITEMS)
    assert sum("could not be found" in record.getMessage() for record in caplog.records) == 1


def test_nobody_there_is_said(tmp_path: object) -> None:
    with pytest.raises(EchoTimeoutError, match="names no shard yet|name no shard yet"):
        ClusterLearner(f"file://{tmp_path}/none", EXAMPLE, timeout=0.3, token="0" * 32)
    with pytest.raises(SecurityError):
        ClusterLearner("dns://localhost:1?transport=tcp", EXAMPLE, auth=False)

"""Batches of several shards have steps and samples of varying length as a single server gives them, right weights while shards come and go, and
batches that no two learners share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from echo_cluster import ClusterLearner, Member
from echo_core import Client, NStep, Ragged, Server, Steps, Table

WAIT_SECONDS = 60.0


@contextmanager
def shards(n: int, table: Table) -> Iterator[list[Server]]:
    servers = [Server(tables=[table], batch_size=1, transport="tcp://127.0.0.1:0").start() for _ in range(n)]
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


def members(servers: list[Server]) -> list[str]:
    return [str(server.addresses[0]) for server in servers]


def wait_for(ready: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_SECONDS
    while not ready():
        assert time.monotonic() < ends
        time.sleep(0.01)


def record(number: int) -> dict[str, np.ndarray]:
    """A sample whose lengths and contents follow from its number."""
    return {
        "id": np.array(number),
        "tokens": np.full(number % 7, number, np.int32),
        "turns": np.full((1 + number % 3, 2), -number, np.float32),
    }


@pytest.mark.parametrize("most", [50, 60_000])
def test_samples_of_varying_length_are_packed_into_one_batch(most: int) -> None:
    """The offsets of each axis go on over the shards. With the greater `most`, batches are larger than a message, and travel in parts."""
    example = {"id": np.zeros((), np.int64), "tokens": Ragged(np.int32, most=most), "turns": Ragged(np.float32, (2,), axis="turn", most=8)}
    large = most > 50_000

    def sample(number: int) -> dict[str, np.ndarray]:
        made = record(number)
        return {**made, "tokens": np.full(40_000 + number, number, np.int32)} if large else made

    with shards(2, Table("replay", example, sampler={"type": "prioritized", "alpha": 1.0}, capacity=300)) as servers:
        for shard, server in enumerate(servers):
            with Client(server.address, example) as client:
                for number in range(10 * shard, 10 * shard + 10):
                    client.send(sample(number), priority=1.0 + number)
        with ClusterLearner(members(servers), example, seed=1) as learner:
            for _ in range(3):
                drawn = learner.sample(64, beta=0.5)
                assert set(drawn.info.shards) == {0, 1} and sum(drawn.info.shards.values()) == 64 == len(drawn.keys)
                lengths = drawn.lengths
                for axis, leaf in (("t", "tokens"), ("turn", "turns")):
                    offsets = drawn.offsets[axis]
                    assert offsets.dtype == np.int32 and offsets[0] == 0 and offsets[-1] == len(drawn.batch[leaf])
                    assert (np.diff(offsets) == lengths[axis]).all()
                for index in range(64):
                    row = drawn.row(index)
                    wanted = sample(int(row["id"]))
                    assert all(np.array_equal(row[name], wanted[name]) for name in wanted)
                np.testing.assert_allclose(drawn.probabilities, (1.0 + drawn.batch["id"]) / 210, rtol=1e-4)
                np.testing.assert_allclose(drawn.weights, (drawn.probabilities.min() / drawn.probabilities) ** 0.5, rtol=1e-5)
                assert learner.update_priorities(drawn.keys, 1.0 + drawn.batch["id"]) == 0
            assert len(next(learner.dataset_iter(16)).keys) == 16


def test_steps_are_what_a_single_server_gives() -> None:
    example = {"obs": np.zeros((), np.float32), "reward": np.zeros((), np.float32)}
    with shards(2, Table("replay", example, items=NStep(2, reward="reward", gamma=0.5), sampler="uniform", capacity=100)) as servers:
        for shard, server in enumerate(servers):
            with Client(server.address, Steps(example)) as client:
                for number in range(20):
                    client.send({"obs": np.float32(100 * shard + number), "reward": np.float32(number)}, end="truncated" if number == 19 else None)
        with ClusterLearner(members(servers), Steps(example)) as learner:
            drawn = learner.sample(40)
            assert set(drawn.info.shards) == {0, 1} and len(drawn.keys) == len(drawn.returns) == 40
            whole = drawn.batch["reward"] < 18  # the last item of an episode has only one step
            np.testing.assert_allclose(drawn.next["obs"][whole], drawn.batch["obs"][whole] + 2)
            np.testing.assert_allclose(drawn.returns[whole], drawn.batch["reward"][whole] * 1.5 + 0.5)
            assert whole.any() and not drawn.terminated.any()


def test_the_weighted_mean_is_right_while_shards_join_and_leave() -> None:
    """Each batch estimates the sum of x over the shards that it is from by the mean of x / p. Its errors have the mean 0 over all batches."""
    example = {"x": np.zeros((), np.float64)}
    table = Table("replay", example, sampler={"type": "prioritized", "alpha": 1.0}, capacity=1000)
    rng = np.random.default_rng(5)
    with shards(3, table) as servers:
        truth = []
        for shard, server in enumerate(servers):
            x, priorities = rng.gamma(2.0, 1.0 + shard, 150), rng.gamma(1.0, 2.0, 150) + 0.05
            with Client(server.address, example) as client:
                client.send_batch({"x": x}, priorities=priorities)
            truth.append(float(x.sum()))
        there = [0, 1]
        everybody = [Member(f"shard-{number}", tuple(server.addresses)) for number, server in enumerate(servers)]
        errors, populations = [], set()

        def draw(learner: ClusterLearner, batches: int) -> None:
            for _ in range(batches):
                sample = learner.sample(64)
                population = frozenset(sample.info.shards)  # shards get their numbers in the order in which they join
                populations.add(population)
                total = sum(truth[number] for number in population)
                errors.append(float((sample.batch["x"] / sample.probabilities).mean()) / total - 1)

        with ClusterLearner(lambda: [everybody[number] for number in there], example, seed=4, patience=5.0) as learner:
            draw(learner, 100)
            there.append(2)  # while it draws
            wait_for(lambda: draw(learner, 1) is None and frozenset({0, 1, 2}) in populations)
            draw(learner, 100)
            there.remove(0)
            wait_for(lambda: draw(learner, 1) is None and frozenset({1, 2}) in populations)
            draw(learner, 100)
            there.append(0)
            wait_for(lambda: draw(learner, 1) is None and learner.stats()["shards_up"] == 3)
            draw(learner, 100)
        assert populations == {frozenset({0, 1}), frozenset({0, 1, 2}), frozenset({1, 2})}
        mean, deviation = float(np.mean(errors)), float(np.std(errors) / len(errors) ** 0.5)
        # Right draws exceed four deviations once in 16 000 runs, and the 99.9 % interval of 3.3 once in 1 000.
        assert abs(mean) < 4 * deviation, f"the mean error is {mean:.4f}, and its standard deviation {deviation:.4f}"
        assert deviation < 0.05


def test_several_learners_draw_disjoint_batches_by_leases() -> None:
    example = {"id": np.zeros((), np.int64)}
    items = 600
    table = Table("tasks", example, sampler="fifo", capacity=items, max_times_sampled=1, lease_timeout=600.0)
    with shards(2, table) as servers:
        for shard, server in enumerate(servers):
            with Client(server.address, example) as client:
                client.send_batch({"id": np.arange(shard, items, 2)})
        got: list[list[int]] = [[], []]
        failed: list[BaseException] = []

        def learn(which: int) -> None:
            try:
                with ClusterLearner(members(servers), example, seed=which) as learner:
                    for _ in range(items // 2 // 20):
                        sample = learner.sample(20)
                        got[which] += sample.batch["id"].tolist()
                        assert learner.ack(sample.keys) == 20
                    learner._end()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=learn, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        assert sorted(got[0] + got[1]) == list(range(items)), "each item went to one learner, and none is left"
        assert got[0] and got[1]
        assert all(server.stats()["table/tasks/size"] == 0 for server in servers)

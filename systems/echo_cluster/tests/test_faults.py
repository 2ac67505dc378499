"""Workers and shards are killed all the time, or drained under load: no item twice while its shard lives, and no more lost than allowed."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import numpy as np
import pytest

from echo_cluster import ClusterClient, ClusterLearner, LocalCluster
from echo_core import EchoError, EchoTimeoutError, JobEnded, Table

EXAMPLE = {"worker": np.zeros((), np.int64), "number": np.zeros((), np.int64)}
CHECKPOINT_EVERY = 1.0
PATIENCE = 1.0


def work(members: str, token: str, worker: int, stop: object, acknowledged: object) -> None:
    """Send items with rising numbers until told to stop. `acknowledged` has the number of those that are committed."""
    try:
        with ClusterClient(members, EXAMPLE, name=f"worker-{worker}", token=token, rehome_after=1.0, timeout=60) as client:
            number = 0
            while not stop.is_set():  # type: ignore[attr-defined]
                for _ in range(20):
                    client.send({"worker": np.array(worker), "number": np.array(number)}, priority=1.0)
                    number += 1
                client.wait()
                acknowledged.value = number  # type: ignore[attr-defined]
                time.sleep(0.02)
    except JobEnded:
        pass


def items(cluster: LocalCluster) -> dict[tuple[int, int], int]:
    """How often each item (worker, number) lies in the shards."""
    found: dict[tuple[int, int], int] = {}
    from echo_core import Client

    for number in range(len(cluster.processes)):
        if not cluster.processes[number].is_alive():
            continue
        with Client(cluster.wait(number).addresses[0], EXAMPLE, token=cluster.token, timeout=30) as client:
            size = int(client.server_stats()["table/replay/size"])
            keys: dict[int, tuple[int, int]] = {}
            for _ in range(200):
                if len(keys) >= size:
                    break
                batch, _, drawn, _, _ = client.sample(2 * size)
                keys.update(zip(drawn.tolist(), zip(batch["worker"].tolist(), batch["number"].tolist())))
            assert len(keys) == size
            for item in keys.values():
                found[item] = found.get(item, 0) + 1
    return found


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_kills_of_workers_and_shards() -> None:
    """The learner goes on; its priorities reach no other item; what is lost was acknowledged after the last checkpoint."""
    seconds = float(os.environ.get("ECHO_SOAK_SECONDS", "10"))
    context = multiprocessing.get_context("spawn")
    table = Table("replay", EXAMPLE, sampler={"type": "prioritized", "alpha": 1.0}, capacity=1_000_000)
    longest, wrong, draws = 0.0, 0, 0
    with LocalCluster(2, [table], checkpoint_every=CHECKPOINT_EVERY) as cluster:
        stop = context.Event()
        workers, counters = [], []

        def start(worker: int) -> None:
            counters.append(context.Value("q", 0))
            workers.append(context.Process(target=work, args=(cluster.members, cluster.token, worker, stop, counters[-1])))
            workers[-1].start()

        start(0)
        start(1)
        learner = ClusterLearner(cluster.members, EXAMPLE, token=cluster.token, patience=PATIENCE, timeout=120)
        learner.sample(8)
        over = threading.Event()

        def faults() -> None:
            shard, round_ = 0, 0
            while not over.wait(2.0):
                round_ += 1
                workers[-1].kill()
                start(len(workers))
                if round_ % 2 == 0:
                    cluster.kill(shard)
                    cluster.restart(shard)
                    shard = 1 - shard
                    over.wait(2.0)

        killer = threading.Thread(target=faults)
        killer.start()
        former: list[tuple[np.ndarray, np.ndarray]] = []
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            began = time.monotonic()
            sample = learner.sample(64)
            longest, draws = max(longest, time.monotonic() - began), draws + 1
            marks = 1.0 + sample.batch["number"] % 5 + 10 * (sample.batch["worker"] % 3)
            former.append((sample.keys, marks))
            learner.update_priorities(*former[-1])
            if len(former) > 50:
                learner.update_priorities(*former.pop(0))  # also keys of servers that are dead
        over.set()
        killer.join()
        stop.set()
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
        # A priority that was misapplied is neither 1 nor that of its item.
        ends = time.monotonic() + 60
        while (sample := learner.sample(512)).info.degraded:
            assert time.monotonic() < ends, learner.shards
        for _ in range(20):
            sample = learner.sample(512)
            mass = sum(shard.mass for shard in learner.shards)
            told = sample.probabilities * mass
            marks = 1.0 + sample.batch["number"] % 5 + 10 * (sample.batch["worker"] % 3)
            wrong += int((~(np.isclose(told, 1.0, rtol=1e-3) | np.isclose(told, marks, rtol=1e-3))).sum())
        learner._end()
        assert items(cluster), "something is left"
    print(f"longest gap of the learner {longest:.2f} s over {draws} batches")
    assert wrong == 0, "a priority was applied to another item"
    assert longest < 60


def test_drain_of_one_of_two_shards_under_load() -> None:
    """What was acknowledged is at the other shard or in the checkpoint of the drained one, once."""
    context = multiprocessing.get_context("spawn")
    with LocalCluster(2, [Table("replay", EXAMPLE, sampler="uniform", capacity=100_000)], checkpoint_every=600.0) as cluster:
        stop, counters, workers = context.Event(), [context.Value("q", 0) for _ in range(3)], []
        for worker, counter in enumerate(counters):
            workers.append(context.Process(target=work, args=(cluster.members, cluster.token, worker, stop, counter)))
            workers[-1].start()
        ends = time.monotonic() + 60
        while min(counter.value for counter in counters) < 100:
            assert time.monotonic() < ends
            time.sleep(0.05)
        cluster.drain(0)
        before = [counter.value for counter in counters]
        while any(counter.value <= old for counter, old in zip(counters, before)):
            assert time.monotonic() < ends + 60, "all workers go on at the other shard"
            time.sleep(0.05)
        stop.set()
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
        cluster.restart(0)
        found = items(cluster)
        assert set(found.values()) == {1}, "nothing is there twice"
        assert set(found) == {(worker, number) for worker, counter in enumerate(counters) for number in range(counter.value)}, "nothing is lost"


def test_a_learner_outlives_all_its_shards() -> None:
    with LocalCluster(1, [Table("replay", EXAMPLE, sampler="uniform", capacity=100)], checkpoint_every=600.0) as cluster:
        with ClusterClient(cluster.members, EXAMPLE, token=cluster.token) as client:
            client.send({"worker": np.array(1), "number": np.array(2)})
        learner = ClusterLearner(cluster.members, EXAMPLE, token=cluster.token, patience=0.3)
        assert learner.sample(1).batch["number"].tolist() == [2]
        cluster.drain(0)
        with pytest.raises((EchoTimeoutError, EchoError)):
            learner.sample(1, timeout=0.5)
        cluster.restart(0)
        assert learner.sample(1, timeout=60).batch["number"].tolist() == [2]
        learner._end()

"""Workers and shards are killed all the time, or drained under load: no item twice while its shard lives, and no more lost than allowed."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from echo_cluster import ClusterClient, ClusterLearner, LocalCluster
from echo_core import Client, EchoError, EchoTimeoutError, JobEnded, Table

EXAMPLE = {"worker": np.zeros((), np.int64), "number": np.zeros((), np.int64)}
CHECKPOINT_EVERY = 1.0
PATIENCE = 1.0


class Sent(NamedTuple):
    """Items `first` to `end` - 1 of a worker, which are acknowledged: when the first of them was sent, when the last acknowledgement was noticed, and
    the worker's homes at these times (`time.time()`, names)."""

    first: int
    end: int
    began: float
    over: float
    homes: set[str]


class Kill(NamedTuple):
    """A shard that was killed at a time from `began` to `over`. Its last checkpoint was begun after `saved`."""

    shard: str
    began: float
    over: float
    saved: float


def work(members: str, token: str, worker: int, stop: object, acknowledged: object, log: str = "") -> None:
    """Send items with rising numbers until told to stop. `acknowledged` has the number of those that are committed, and the file `log` has `Sent`s."""
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if log else None
    try:
        with ClusterClient(members, EXAMPLE, name=f"worker-{worker}", token=token, rehome_after=1.0, timeout=60) as client:
            number = 0
            while not stop.is_set():  # type: ignore[attr-defined]
                first, began, home = number, time.time(), client.shard
                for _ in range(20):
                    client.send({"worker": np.array(worker), "number": np.array(number)}, priority=1.0)
                    number += 1
                client.wait()
                if opened is not None:  # in one write, so that a kill leaves whole lines
                    os.write(opened, f"{first} {number} {began} {time.time()} {home} {client.shard}\n".encode())
                if acknowledged is not None:
                    acknowledged.value = number  # type: ignore[attr-defined]
                time.sleep(0.02)
    except JobEnded:
        pass


def sent_by(log: Path) -> list[Sent]:
    """The samples that a worker has sent, read from its log."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [Sent(int(one), int(two), float(three), float(four), set(homes)) for one, two, three, four, *homes in map(str.split, lines)]


def items(cluster: LocalCluster) -> dict[tuple[int, int], list[str]]:
    """At which shards each item (worker, number) lies."""
    found: dict[tuple[int, int], list[str]] = {}
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
                found.setdefault(item, []).append(f"shard-{number}")
    return found


class Checkpoints:
    """Notes when each shard has completed its checkpoints (`time.time()`), on a thread of its own, until `end()`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._files = {f"shard-{number}": cluster.folder / f"checkpoint-{number}" / "LATEST" for number in range(len(cluster.processes))}
        self._seen: dict[str, list[float]] = {name: [0.0] for name in self._files}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            for name in self._files:
                self.look(name)

    def look(self, name: str) -> float:
        """When the checkpoint before the last one was completed, which is before the last one was begun."""
        times = self._seen[name]
        try:
            if (latest := self._files[name].stat().st_mtime) > times[-1]:
                times.append(latest)
        except FileNotFoundError:
            pass
        return times[-2] if len(times) > 1 else 0.0

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_kills_of_workers_and_shards(tmp_path: Path) -> None:
    """The learner goes on; its priorities reach no other item; what is lost was stored after the last checkpoint of a shard that was killed; no item is
    there twice unless its shard was killed before it said that it has the item."""
    soak = os.environ.get("ECHO_SOAK_SECONDS")
    context = multiprocessing.get_context("spawn")
    table = Table("replay", EXAMPLE, sampler={"type": "prioritized", "alpha": 1.0}, capacity=1_000_000)
    longest, draws = 0.0, 0
    wrong: list[tuple[float, tuple[int, ...]]] = []  # the priority that an item has, and its key
    kills: list[Kill] = []
    failed: list[BaseException] = []
    with LocalCluster(2, [table], checkpoint_every=CHECKPOINT_EVERY) as cluster:
        stop = context.Event()
        workers: list[Any] = []

        def start(worker: int) -> None:
            arguments = (cluster.members, cluster.token, worker, stop, None, str(tmp_path / f"worker-{worker}"))
            workers.append(context.Process(target=work, args=arguments))
            workers[-1].start()

        start(0)
        start(1)
        learner = ClusterLearner(cluster.members, EXAMPLE, token=cluster.token, patience=PATIENCE, timeout=120)
        learner.sample(8)
        over, checkpoints = threading.Event(), Checkpoints(cluster)

        def faults() -> None:
            shard, round_ = 0, 0
            while not over.wait(2.0):
                round_ += 1
                workers[-1].kill()
                start(len(workers))
                if round_ % 2 and all(state.state == "up" for state in learner.shards):  # the last killed one serves again
                    began = time.time()
                    cluster.kill(shard)
                    kills.append(Kill(f"shard-{shard}", began, time.time(), checkpoints.look(f"shard-{shard}")))
                    cluster.restart(shard)
                    shard = 1 - shard

        def noted() -> None:
            try:
                faults()
            except BaseException as error:
                failed.append(error)

        killer = threading.Thread(target=noted)
        killer.start()
        try:
            former: list[tuple[np.ndarray, np.ndarray]] = []
            ends = time.monotonic() + float(soak or 10)
            while time.monotonic() < ends:
                began = time.monotonic()
                sample = learner.sample(64)
                longest, draws = max(longest, time.monotonic() - began), draws + 1
                marks = 1.0 + sample.batch["number"] % 5 + 10 * (sample.batch["worker"] % 3)
                former.append((sample.keys, marks))
                learner.update_priorities(*former[-1])
                if len(former) > 50:
                    learner.update_priorities(*former.pop(0))  # also keys of servers that are dead
        finally:
            over.set()
            killer.join()
            checkpoints.end()
            stop.set()
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
        # A priority that was misapplied is neither 1 nor that of its item. The masses are those of the batch only if all shards have their part in it.
        ends = time.monotonic() + 60
        checked = 0
        while checked < 21:
            assert time.monotonic() < ends, learner.shards
            sample = learner.sample(512)
            if sample.info.degraded or len(sample.info.shards) < 2:
                checked = 0  # the masses are those before a shard was left out
                continue
            checked += 1
            if checked == 1:
                continue  # its shares were those of the masses before it; the 20 after it are compared
            told = sample.probabilities * sum(shard.mass for shard in learner.shards)
            marks = 1.0 + sample.batch["number"] % 5 + 10 * (sample.batch["worker"] % 3)
            other = ~(np.isclose(told, 1.0, rtol=1e-3) | np.isclose(told, marks, rtol=1e-3))
            wrong += [(priority, key.tolist()) for priority, key in zip(told[other].tolist(), sample.keys[other])]
        learner._end()
        found = items(cluster)
    assert not failed, failed
    assert kills, "no shard was killed"
    assert not wrong, f"priorities were applied to other items, {len(wrong)} times: {wrong[:20]}"
    lost = twice = 0
    for worker in range(len(workers)):
        for sent in sent_by(tmp_path / f"worker-{worker}"):
            for number in range(sent.first, sent.end):
                shards = found.pop((worker, number), [])
                if not shards:
                    lost += 1
                    why = f"item {number} of worker {worker}, {sent}, is lost, and was in a checkpoint: {kills}"
                    assert any(kill.shard in sent.homes and kill.saved < sent.over and sent.began < kill.over for kill in kills), why
                elif len(shards) > 1:
                    twice += 1
                    assert len(set(shards)) == len(shards), f"item {number} of worker {worker} is twice at one shard: {shards}"
                    why = f"item {number} of worker {worker}, {sent}, is there twice, and no shard was killed meanwhile: {kills}"
                    assert any(sent.began <= kill.over and kill.began <= sent.over for kill in kills), why
    assert all(len(set(shards)) == len(shards) for shards in found.values()), "an item that was not acknowledged is twice at one shard"
    print(f"{len(kills)} kills of shards, {len(workers) - 2} of workers; {lost} items lost, {twice} twice; longest gap {longest:.2f} s over {draws} batches")
    # In CI other tests run beside this one, and the time tells nothing.
    assert longest <= (PATIENCE + 2 if soak else 30)


def test_drain_of_one_of_two_shards_under_load() -> None:
    """Each acknowledged item is once at the other shard or in the checkpoint of the drained one."""
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
        assert all(len(shards) == 1 for shards in found.values()), "nothing is there twice"
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

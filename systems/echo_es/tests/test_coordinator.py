"""The coordinator as a state machine: workers that join, leave, lie and repeat themselves, and epochs that are exact all the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from echo_es.search import assignments
from echo_es.search.assignments import AT_ONCE
from echo_es.search.coordinator import Coordinator
from echo_es.search.tasks import Kind, Member, Outcome, RefusedError, Rewards, Task, individuals

SEEDS = 1000


def reward(epoch: int, individual: int) -> float:
    return 1000.0 * epoch + individual


class Record:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.epochs: list[tuple[int, Rewards]] = []
        self.states: list[tuple[int, Any]] = []
        self.counted: list[tuple[int, tuple[slice, ...], Rewards]] = []
        self.tests: list[tuple[int, Rewards]] = []
        self.vain: list[tuple[Member, Task]] = []
        self.ended = 0

    def evaluated(self, epoch: int, slices: tuple[slice, ...], rewards: Rewards) -> None:
        self.counted.append((epoch, slices, rewards))

    def epoch_complete(self, epoch: int, rewards: Rewards) -> None:
        self.epochs.append((epoch, rewards.copy()))

    def state_shared(self, version: int, state: Any) -> None:
        self.states.append((version, state))

    def tested(self, epoch: int, rewards: Rewards) -> None:
        self.tests.append((epoch, rewards.copy()))

    def cancelled(self, member: Member, task: Task) -> None:
        self.vain.append((member, task))

    def over(self) -> None:
        self.ended += 1


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Worker:
    """A worker that does what it is told, when `work` is called. Its state is how many epochs it has optimised."""

    def __init__(self, coordinator: Coordinator, id: str, cores: int) -> None:
        self.coordinator, self.id, self.cores = coordinator, id, cores
        self.task: Task | None = None
        self.state: int | None = None
        self.alive = True
        self.join()

    def join(self) -> None:
        self.member = self.coordinator.join(self.id, self.cores)
        self.coordinator.take(self.member, self.give)

    def give(self, task: Task) -> bool:
        if self.alive:
            assert self.task is None or self.task is task
            self.task = task
        return self.alive

    def rewards(self) -> list[float]:
        assert self.task is not None
        return [reward(self.task.epoch, i) for part in self.task.slices for i in range(part.start, part.stop)]

    def work(self) -> None:
        task = self.task
        assert task is not None
        if task.kind is Kind.STOP:
            return
        self.task = None
        if task.kind is Kind.EVALUATE:
            assert 1 <= individuals(task.slices) <= self.cores
            assert self.state == task.epoch - 1, "evaluated with another epoch's state"
            self.task = task
            rewards = self.rewards()
            self.task = None
            self.coordinator.report(self.member, task.id, rewards)
        elif task.kind is Kind.OPTIMIZE:
            assert task.rewards is not None and self.state == task.epoch - 1
            assert list(task.rewards) == [reward(task.epoch, i) for i in range(self.coordinator.population)]
            self.state = task.epoch
            self.coordinator.report(self.member, task.id)
        elif task.kind in (Kind.INITIALIZE, Kind.SHARE):
            if task.kind is Kind.INITIALIZE:
                self.state = 0
            assert self.state == task.version
            self.coordinator.share(self.member, task.id, f"state {self.state}")
        elif task.kind is Kind.WELCOME:
            assert task.state == f"state {task.version}"
            self.state = task.version
            self.coordinator.report(self.member, task.id)
        self.coordinator.take(self.member, self.give)


def settle(workers: list[Worker]) -> None:
    """Let all workers work until nobody has anything to do."""
    while busy := [worker for worker in workers if worker.alive and worker.task is not None and worker.task.kind is not Kind.STOP]:
        for worker in busy:
            worker.work()


def exact(record: Record, population: int) -> None:
    assert [epoch for epoch, _ in record.epochs] == list(range(1, len(record.epochs) + 1))
    for epoch, rewards in record.epochs:
        assert list(rewards) == [reward(epoch, i) for i in range(population)]


def lies(coordinator: Coordinator, worker: Worker, chance: random.Random) -> Iterator[str]:
    """Reports that must be refused, and leave the task where it is."""
    task = worker.task
    assert task is not None
    if task.kind is Kind.EVALUATE:
        right = worker.rewards()
        yield "too few"
        with pytest.raises(RefusedError, match="exactly one reward for each"):
            coordinator.report(worker.member, task.id, right[:-1])
        yield "too many"
        with pytest.raises(RefusedError, match="exactly one reward for each"):
            coordinator.report(worker.member, task.id, [*right, 1.0])
        yield "slices of its own"
        moved = [slice(part.start + 1, part.stop + 1) for part in task.slices]
        with pytest.raises(RefusedError, match="exactly one reward for each"):
            coordinator.report(worker.member, task.id, right, moved)
    yield "a task that nobody has been given"
    with pytest.raises(RefusedError, match="holds"):
        coordinator.report(worker.member, task.id + chance.randrange(1000, 2000), [])
    if task.kind not in (Kind.INITIALIZE, Kind.SHARE):
        yield "a state that nobody asked for"
        with pytest.raises(RefusedError, match="holds") if task.id != worker.member.reported else pytest.raises(RefusedError):
            coordinator.share(worker.member, task.id, "a lie")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_epochs_are_exact_whatever_workers_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments, "AT_ONCE", 1 + seed % 3)  # these searches have fewer workers than the 16 of the product
    chance = random.Random(seed)
    population, epochs = chance.randint(1, 40), chance.randint(2, 6)
    record, clock = Record(), Clock()
    coordinator = Coordinator(population, record, max_epochs=epochs, clock=clock, max_slices=chance.choice([0, 0, 2]), history=chance.choice([2, 64]))
    workers: list[Worker] = []
    number = 0
    for _ in range(4000):
        if record.ended:
            break
        clock.now += chance.random()
        step = chance.random()
        if len(workers) < 2 or (step < 0.05 and len(workers) < 9):
            number += 1
            workers.append(Worker(coordinator, f"w{number}", chance.randint(1, 8)))
        elif step < 0.08 and len(workers) > 2:
            gone = workers.pop(chance.randrange(len(workers)))
            gone.alive = False
            coordinator.leave(gone.member)
            with pytest.raises(RefusedError, match="was removed"):
                coordinator.report(gone.member, 1, [])
        elif step < 0.12:
            away = chance.choice(workers)
            coordinator.disconnected(away.member)
            if chance.random() < 0.5:  # its program was started again, within the time of grace or after it
                clock.now += chance.choice([1, 6])
                coordinator.tick()
                away.task = away.state = None
                away.join()
            else:  # only its connection was cut
                coordinator.take(away.member, away.give)
        elif step < 0.14:
            with pytest.raises(RefusedError, match="cores"):
                coordinator.join("nobody", chance.choice([0, -1]))
        elif step < 0.2:
            coordinator.tick()
        else:
            worker = chance.choice(workers)
            if worker.task is None or worker.task.kind is Kind.STOP:
                continue
            if chance.random() < 0.1:
                for _lie in lies(coordinator, worker, chance):
                    assert worker.member.task is worker.task
            done = worker.task
            worker.work()
            if chance.random() < 0.1 and done.kind is Kind.EVALUATE:
                assert coordinator.report(worker.member, done.id, [0.0] * individuals(done.slices)) in (Outcome.REPEATED, Outcome.STALE)
        if coordinator.phase == "evaluate" and coordinator._search.now.free:
            current = [w for w in workers if w.member.version == coordinator.epoch - 1]
            assert all(w.member.task is not None for w in current), "a worker is idle while individuals are free"
    settle(workers)
    exact(record, population)
    assert len(record.epochs) == epochs and record.ended == 1
    assert [version for version, _ in record.states] == list(range(epochs + 1))


def test_the_first_workers_begin_while_the_tasks_of_the_others_are_made() -> None:
    count, record, made = 3 * AT_ONCE, Record(), []
    coordinator = Coordinator(count, record, server_optimizes=True)
    workers = [Worker(coordinator, str(number), 1) for number in range(count)]
    for worker in workers:
        task, worker.task = worker.task, None
        assert task is not None
        coordinator.report(worker.member, task.id, [reward(1, i) for part in task.slices for i in range(part.start, part.stop)])

        def give(task: Task, worker: Worker = worker) -> bool:
            made.append(sum(one.member.task is not None for one in workers))
            return worker.give(task)

        coordinator.take(worker.member, give)
    coordinator.told()
    assert made == [AT_ONCE] * AT_ONCE + [2 * AT_ONCE] * AT_ONCE + [3 * AT_ONCE] * AT_ONCE
    assert sorted(worker.task.slices[0].start for worker in workers if worker.task is not None) == list(range(count))


def test_slices_in_another_order_are_put_right() -> None:
    record = Record()
    coordinator = Coordinator(6, record, server_optimizes=True)
    first, second = Worker(coordinator, "a", 2), Worker(coordinator, "b", 2)
    third = Worker(coordinator, "c", 1)
    coordinator.leave(first.member)
    fourth = Worker(coordinator, "d", 3)
    assert fourth.task is not None and len(fourth.task.slices) == 2
    back = fourth.task.slices[::-1]
    coordinator.report(fourth.member, fourth.task.id, [reward(1, i) for part in back for i in range(part.start, part.stop)], back)
    for worker in (second, third):
        assert worker.task is not None
        coordinator.report(worker.member, worker.task.id, worker.rewards())
    exact(record, 6)
    assert len(record.epochs) == 1


def test_a_slow_task_is_given_to_an_idle_worker_and_the_first_result_counts() -> None:
    record, clock = Record(), Clock()
    coordinator = Coordinator(4, record, server_optimizes=True, clock=clock)
    slow, quick = Worker(coordinator, "slow", 2), Worker(coordinator, "quick", 2)
    clock.now = 0.1
    assert quick.task is not None and slow.task is not None
    late = slow.task
    task, quick.task = quick.task, None
    coordinator.report(quick.member, task.id, [reward(1, i) for i in range(2, 4)])
    coordinator.take(quick.member, quick.give)
    coordinator.tick()
    assert quick.task is None  # 0.1 s is no reason: the floor is a second
    clock.now = 1.2
    coordinator.tick()
    copy = quick.task
    assert copy is not None and copy.slices == late.slices and coordinator.counts["speculated"] == 1
    coordinator.report(quick.member, copy.id, [reward(1, i) for i in range(2)])
    assert [task for _, task in record.vain] == [late]
    assert coordinator.report(slow.member, late.id, [-1.0, -1.0]) is Outcome.DUPLICATE
    exact(record, 4)
    assert coordinator.counts["duplicates"] == 2 and coordinator.counts["evaluations"] == 4


def test_the_server_optimizes_and_tests_the_parameters() -> None:
    record = Record()
    coordinator = Coordinator(4, record, server_optimizes=True, max_epochs=2)
    worker = Worker(coordinator, "a", 3)
    coordinator.test(2)
    for epoch in (1, 2):
        while coordinator.phase == "evaluate":
            assert worker.task is not None
            task, worker.task = worker.task, None
            values = [reward(task.epoch, i) for part in task.slices for i in range(part.start, part.stop)]
            coordinator.report(worker.member, task.id, values)
            coordinator.take(worker.member, worker.give)
        assert coordinator.phase == "tell" and worker.task is None
        coordinator.told(f"theta {epoch}")
    assert worker.task is not None and worker.task.kind is Kind.STOP
    exact(record, 4)
    assert [list(rewards) for _, rewards in record.tests] == [[1000.0, 1001.0]]


def test_steady_rewards_are_told_on_arrival() -> None:
    record = Record()
    coordinator = Coordinator(4, record, server_optimizes=True, steady=True, max_epochs=3)
    workers = [Worker(coordinator, name, 2) for name in "ab"]
    gone = workers[0].task
    coordinator.leave(workers[0].member)
    workers[0] = Worker(coordinator, "c", 2)
    assert gone is not None and workers[0].task is not None and workers[0].task.slices == gone.slices
    seen: list[int] = []
    while not record.ended:
        for worker in workers:
            task, worker.task = worker.task, None
            assert task is not None
            if task.kind is Kind.EVALUATE:
                coordinator.report(worker.member, task.id, [1.0] * individuals(task.slices))
            coordinator.take(worker.member, worker.give)
    for _, slices, _ in record.counted:
        seen += [i for part in slices for i in range(part.start, part.stop)]
    assert sorted(seen) == list(range(12)) and not record.epochs


def test_it_goes_on_where_an_earlier_one_ended() -> None:
    done = [(1, np.array([reward(1, i) for i in range(6)]))]
    for version, partial, left in ((1, [((slice(0, 2), slice(4, 5)), np.array([reward(2, i) for i in (0, 1, 4)]))], [slice(2, 4), slice(5, 6)]), (0, [], None)):
        record = Record()
        coordinator = Coordinator(6, record, max_epochs=2)
        coordinator.resume(done, version, f"state {version}", partial)
        if left is not None:
            assert coordinator._search.now.free.take(6) == left
            coordinator._search.now.free.give_back(left)
        worker = Worker(coordinator, "a", 4)
        settle([worker])
        assert [list(rewards) for _, rewards in record.epochs] == [[reward(2, i) for i in range(6)]]
        assert record.states[-1] == (2, "state 2") and record.ended == 1


def test_a_worker_that_answers_for_a_state_with_rewards_is_refused() -> None:
    coordinator = Coordinator(2, Record())
    worker = Worker(coordinator, "a", 1)
    assert worker.task is not None and worker.task.kind is Kind.INITIALIZE
    with pytest.raises(RefusedError, match="has to be shared"):
        coordinator.report(worker.member, worker.task.id, [1.0])
    assert coordinator.members()[0].task is worker.task


def test_rewards_that_are_no_numbers_are_passed_on_and_counted() -> None:
    record = Record()
    coordinator = Coordinator(2, record, server_optimizes=True)
    worker = Worker(coordinator, "a", 2)
    assert worker.task is not None
    coordinator.report(worker.member, worker.task.id, [float("nan"), float("inf")])
    assert np.isnan(record.epochs[0][1][0]) and coordinator.counts["invalid"] == 2


def test_a_program_that_is_started_again_gets_the_state_first() -> None:
    coordinator = Coordinator(4, Record())
    worker = Worker(coordinator, "a", 2)
    worker.work()
    assert worker.task is not None and worker.task.kind is Kind.EVALUATE and coordinator.counts["reassigned"] == 0
    again = Worker(coordinator, "a", 2)
    assert again.task is not None and again.task.kind is Kind.WELCOME and again.task.state == "state 0"
    with pytest.raises(RefusedError, match="has to join again"):
        worker.work()
    assert len(coordinator.members()) == 1 and coordinator.counts["reassigned"] == 2


def test_a_test_whose_worker_leaves_is_finished_by_others() -> None:
    record = Record()
    coordinator = Coordinator(4, record, server_optimizes=True)
    coordinator.test(3)
    gone, other = Worker(coordinator, "a", 2), Worker(coordinator, "b", 2)
    coordinator.leave(gone.member)
    for _ in range(2):
        assert other.task is not None and other.task.kind is Kind.TEST
        task, other.task = other.task, None
        coordinator.report(other.member, task.id, [float(i) for part in task.slices for i in range(part.start, part.stop)])
        coordinator.take(other.member, other.give)
    assert [list(rewards) for _, rewards in record.tests] == [[0.0, 1.0, 2.0]]


def test_an_epoch_whose_state_was_not_made_is_told_again() -> None:
    record = Record()
    coordinator = Coordinator(2, record, server_optimizes=True)
    coordinator.resume([(1, np.array([1.0, 2.0]))], 0, "theta 0")
    assert [(epoch, list(rewards)) for epoch, rewards in record.epochs] == [(1, [1.0, 2.0])] and coordinator.phase == "tell"
    coordinator.told("theta 1")
    assert coordinator.epoch == 2 and coordinator.phase == "evaluate" and coordinator.state == "theta 1"

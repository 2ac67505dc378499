"""The untouched clients of Evochi, 0.1.3 and 0.1.4, at our front."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fleet import Fleet, wait
from searches import search


def reward(epoch: int, individual: int) -> float:
    return 1000.0 * epoch + individual + 1


def test_a_client_works_to_the_end(client_folder: Path) -> None:
    with search(10, max_epochs=3) as (front, _, heard), Fleet(front.port) as fleet:
        worker = fleet.add(folder=client_folder)
        worker.wait_for("end")
        assert heard.epochs == {epoch: [reward(epoch, i) for i in range(10)] for epoch in (1, 2, 3)}
        assert sorted(heard.states) == [0, 1, 2, 3]
        assert [line for line in worker.lines if line.startswith(("evaluate 1", "stop", "end"))] == [
            "evaluate 1 [(0, 4)]",
            "evaluate 1 [(4, 8)]",
            "evaluate 1 [(8, 10)]",
            "stop False",
            "stop True",
            "end",
        ]
        assert not fleet.complaints()


def test_a_client_that_reports_each_individual_alone_works_to_the_end(client_folder: Path) -> None:
    with search(10, max_epochs=3) as (front, coordinator, heard), Fleet(front.port) as fleet:
        fleet.add("split", folder=client_folder).wait_for("end")
        assert heard.epochs == {epoch: [reward(epoch, i) for i in range(10)] for epoch in (1, 2, 3)}
        assert coordinator.counts["refused"] == 0
        assert not fleet.complaints()


def test_a_client_that_joins_early_waits_for_the_state(client_folder: Path) -> None:
    with search(8, max_epochs=40) as (front, _, _heard), Fleet(front.port) as fleet:
        workers = [fleet.add(folder=client_folder, cores=2, seconds=0.02) for _ in range(3)]
        for worker in workers:
            worker.wait_for("stop False")
        assert len([line for line in fleet.lines() if line == "initialize"]) == 1
        assert not fleet.complaints()


def test_a_client_that_joins_late_has_the_newest_state(client_folder: Path) -> None:
    with search(8) as (front, _, _heard), Fleet(front.port) as fleet:
        fleet.add(folder=client_folder).wait_for("optimize 5")
        late = fleet.add(folder=client_folder)
        assert int(late.wait_for(r"state (\d+) .* first")[1]) >= 5
        late.wait_for(r"evaluate .*")
        assert not fleet.complaints()


def test_clients_are_killed_and_every_epoch_is_exact(client_folder: Path) -> None:
    generator = random.Random(1)
    with search(30) as (front, coordinator, heard), Fleet(front.port) as fleet:
        alive = [fleet.add(folder=client_folder, seconds=0.02) for _ in range(3)]
        wait(lambda: coordinator.epoch > 2, what=lambda: str(coordinator.stats()))  # whoever joined first: the others may have missed the first epochs
        for _ in range(8):
            alive.append(fleet.add(folder=client_folder, seconds=0.02))
            alive[-1].wait_for("evaluate .*")
            victim = alive.pop(generator.randrange(len(alive) - 1))
            time.sleep(generator.random() * 0.1)
            victim.kill()
        epoch = coordinator.epoch
        wait(lambda: coordinator.epoch >= epoch + 3, what=lambda: str(coordinator.stats()))
        assert all(rewards == [reward(number, i) for i in range(30)] for number, rewards in heard.epochs.items())
        assert not fleet.complaints()


def test_the_last_client_is_killed_and_another_goes_on(client_folder: Path) -> None:
    with search(8) as (front, coordinator, heard), Fleet(front.port) as fleet:
        worker = fleet.add(folder=client_folder, seconds=0.02)
        worker.wait_for("optimize 3")
        worker.kill()
        wait(lambda: not coordinator.members())
        epoch = coordinator.epoch
        other = fleet.add(folder=client_folder)
        other.wait_for(rf"optimize {epoch + 2}")
        assert "initialize" not in other.lines
        assert all(rewards == [reward(number, i) for i in range(8)] for number, rewards in heard.epochs.items())
        assert not fleet.complaints()

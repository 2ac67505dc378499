"""If the only worker leaves while it optimises, the next one gets the old state and optimises in its place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from searches import Heard

from echo_es.search.coordinator import Coordinator
from echo_es.search.tasks import Kind, Task


@pytest.mark.parametrize("leaves_in", [Kind.OPTIMIZE, Kind.SHARE])
def test_the_next_worker_optimises_instead(leaves_in: Kind) -> None:
    heard = Heard()
    coordinator = Coordinator(4, heard)
    first, given = coordinator.join("first", 4), list[Task]()

    def work(member: object, until: Kind) -> Task:
        while True:
            coordinator.take(member, lambda task: given.append(task) or True)  # type: ignore[arg-type, func-returns-value]
            task = given[-1]
            if task.kind is until:
                return task
            if task.kind in (Kind.INITIALIZE, Kind.SHARE):
                coordinator.share(member, task.id, f"state {task.version}")  # type: ignore[arg-type]
            else:
                coordinator.report(member, task.id, [1.0, 2.0, 3.0, 4.0] if task.kind is Kind.EVALUATE else ())  # type: ignore[arg-type]

    work(first, leaves_in)
    coordinator.leave(first)
    second = coordinator.join("second", 4)
    assert work(second, Kind.WELCOME).version == 0
    coordinator.report(second, given[-1].id)
    assert work(second, Kind.OPTIMIZE).rewards is not None
    assert work(second, Kind.EVALUATE).epoch == 2
    assert heard.states == {0: "state 0", 1: "state 1"}

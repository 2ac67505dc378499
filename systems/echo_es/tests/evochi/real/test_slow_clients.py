"""Evochi's clients send heartbeats from the event loop on which they evaluate. A long evaluation is no reason to remove one."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fleet import Fleet, wait
from searches import search

from echo_es.evochi.options import FrontOptions

OPTIONS = FrontOptions(port=0, worker_timeout=1.0)


@pytest.mark.parametrize("how", ["", "busy"])
def test_an_evaluation_may_take_longer_than_the_timeout_of_heartbeats(client_folder: Path, how: str) -> None:
    with search(8, options=OPTIONS, max_epochs=1) as (front, coordinator, heard), Fleet(front.port) as fleet:
        worker = fleet.add(how, folder=client_folder, seconds=4.0)
        worker.wait_for("end")
        assert list(heard.epochs) == [1]
        assert (coordinator.counts["joined"], coordinator.counts["reassigned"]) == (1, 0)
        assert not fleet.complaints()


def test_a_client_that_is_stopped_while_it_evaluates_loses_its_task(client_folder: Path) -> None:
    with search(4, options=OPTIONS) as (front, coordinator, heard), Fleet(front.port) as fleet:
        stopped = fleet.add(folder=client_folder, seconds=0.2)
        stopped.wait_for("begin .*")
        stopped.process.send_signal(signal.SIGSTOP)
        wait(lambda: not coordinator.members(), what=lambda: str(coordinator.stats()))
        done = len(heard.epochs)
        fleet.add(folder=client_folder)
        wait(lambda: len(heard.epochs) > done + 1)

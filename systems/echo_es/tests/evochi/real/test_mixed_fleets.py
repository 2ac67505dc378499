"""Our workers beside Evochi's clients, in both orders."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fleet import Fleet
from searches import search


def test_an_old_client_reads_the_state_of_our_worker(client_folder: Path) -> None:
    with search(8) as (front, _, _heard), Fleet(front.port) as fleet:
        fleet.add(seconds=0.01).wait_for("optimize 2")
        old = fleet.add(folder=client_folder, seconds=0.01)
        old.wait_for(r"state \d+ .* first")
        old.wait_for("optimize .*")
        assert not fleet.complaints()


def test_our_worker_does_not_open_the_state_of_an_old_client(client_folder: Path) -> None:
    with search(8) as (front, coordinator, _), Fleet(front.port) as fleet:
        old = fleet.add(folder=client_folder, seconds=0.01)
        old.wait_for("optimize 2")
        new = fleet.add(seconds=0.01)
        new.wait_for('.*codec="pickle".*')
        epoch = coordinator.epoch
        old.wait_for(f"optimize {epoch + 1}")

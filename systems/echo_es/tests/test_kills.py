"""Workers are killed every 0.3 s, over every transport: each epoch has exactly the rewards of its individuals."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from nursery import Nursery, rewards_of

from echo_es.experiments.experiment import Experiment
from echo_es.search.tasks import Rewards
from echo_es.server import ESServer

SOAK = "ECHO_SOAK_SECONDS" in os.environ
EPOCHS = 100 if SOAK else 20
POPULATION, WORKERS = 48, 8
PAUSE = 0.3  # seconds between two kills
SECONDS = 0.1  # that an evaluation takes
LIMIT = 900 if SOAK else 150
SCHEMES = {"tcp": "tcp", "tcps": "tcp", "shm": "shm", "grpc": "grpc", "rdma": "rdma"}


class Recorded(Experiment):
    """Keeps the rewards of every epoch."""

    epochs: list[tuple[int, list[float]]]

    def epoch_complete(self, epoch: int, rewards: Rewards) -> None:
        self.epochs.append((epoch, rewards.tolist()))
        super().epoch_complete(epoch, rewards)


@pytest.mark.soak
@pytest.mark.timeout(LIMIT + 30)
@pytest.mark.parametrize("scheme", [pytest.param(scheme, marks=pytest.mark.needs(f"echo-{of}")) for scheme, of in SCHEMES.items()])
def test_rewards_are_exact_although_workers_are_killed(scheme: str, tmp_path: Path) -> None:
    chance = random.Random(3)
    address = f"shm://{tmp_path}/search" if scheme == "shm" else f"{scheme}://127.0.0.1:0"
    search = Recorded(POPULATION, max_epochs=EPOCHS, grace=0.2)
    search.epochs = []
    with ESServer(search, address) as server, Nursery(str(server.address), SECONDS) as workers:
        for _ in range(WORKERS):
            workers.add()
        killed, deadline = 0, time.monotonic() + LIMIT
        while not server.wait(PAUSE):
            assert time.monotonic() < deadline, server.stats()
            if search.epochs:  # it has begun
                workers.kill(chance.randrange(WORKERS))
                workers.add()
                killed += 1
        print(f"{scheme}: {EPOCHS} epochs, {killed} kills, {server.coordinator.counts}")
        assert killed >= EPOCHS / 4
        assert search.epochs == [(epoch, rewards_of(epoch, POPULATION)) for epoch in range(1, EPOCHS + 1)]
        total = sum(sum(rewards_of(epoch, POPULATION)) for epoch in range(1, EPOCHS + 1))
        assert server.state() == {"epochs": float(EPOCHS), "total": total}

"""A large state reaches workers that join early and late, over every transport, in a few copies of memory. With ECHO_SOAK_SECONDS it has 100 MB everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from echo_es.server import ESServer

SMALL, LARGE = 16_000_000, 100_000_000  # bytes
WAIT = 120.0
COPIES = 5  # of the state, at most, that a worker holds at once: its old one, its new one, and what it packs or has received
OTHER = 250_000_000  # bytes of a worker without any state
WORKER = """
import asyncio, sys
import numpy as np
from echo_es import Eval, Worker

class Large(Worker[dict]):
    initialized = False

    def initialize(self):
        self.initialized = True
        return {"theta": np.arange(int(sys.argv[2]) // 4, dtype=np.int32), "epochs": 0}

    async def evaluate(self, epoch, slices):
        assert self.state["epochs"] == epoch - 1 and self.state["theta"][-1] == self.state["theta"][0] + len(self.state["theta"]) - 1
        await asyncio.sleep(0.05)
        return Eval.from_flat(slices, [float(number) for part in slices for number in range(part.start, part.stop)])

    def optimize(self, epoch, rewards):
        return {"theta": self.state["theta"] + np.int32(1), "epochs": epoch}

worker = Large(sys.argv[1], 4)
asyncio.run(worker.start())
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss would be that of the test that has started it
print(worker.initialized, worker.state["epochs"], int(peak.split()[1]) * 1024)
"""
SCHEMES = {"tcp": "tcp", "tcps": "tcp", "shm": "shm", "grpc": "grpc", "rdma": "rdma"}
OFTEN_LARGE = ("tcp", "shm")  # without ECHO_SOAK_SECONDS


def wait_for(server: ESServer, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, server.stats()
        time.sleep(0.02)


@pytest.mark.timeout(3 * WAIT)
@pytest.mark.parametrize("scheme", [pytest.param(scheme, marks=pytest.mark.needs(f"echo-{of}")) for scheme, of in SCHEMES.items()])
def test_a_large_state_reaches_every_worker(scheme: str, tmp_path: Path) -> None:
    address = f"shm://{tmp_path}/search" if scheme == "shm" else f"{scheme}://127.0.0.1:0"
    size = LARGE if scheme in OFTEN_LARGE or "ECHO_SOAK_SECONDS" in os.environ else SMALL
    workers: list[subprocess.Popen[str]] = []
    with ESServer(12, address) as server:

        def start() -> None:
            workers.append(subprocess.Popen([sys.executable, "-c", WORKER, str(server.address), str(size)], stdout=subprocess.PIPE, text=True))

        try:
            start()
            start()
            wait_for(server, lambda: server.rewards is not None)
            start()  # it joins when the state is there
            wait_for(server, lambda: len(members := server.coordinator.members()) == 3 and all(member.evaluated for member in members))
            epochs = server.coordinator.version + 1
            wait_for(server, lambda: server.coordinator.version >= epochs)
            server.coordinator.stop()
            said = [worker.communicate(timeout=WAIT)[0].split() for worker in workers]
            assert [worker.returncode for worker in workers] == [0, 0, 0]
            assert sorted(initialized for initialized, _, _ in said) == ["False", "False", "True"]
            peaks = [int(peak) for _, _, peak in said]
            print(f"{scheme}: a state of {size / 1e6:.0f} MB, at most {max(peaks) / 1e6:.0f} MB in a worker")
            assert max(peaks) < COPIES * size + OTHER
            state = server.state()
            assert state["epochs"] == server.coordinator.version
            np.testing.assert_array_equal(state["theta"], np.arange(size // 4, dtype=np.int32) + np.int32(state["epochs"]))
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()

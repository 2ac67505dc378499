"""Workers that are killed or stopped at any moment: nothing is lost, doubled, torn, wedged or left behind."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.errors import EchoTimeoutError
from echo_core.testing.processes import descriptors, settled, until
from echo_core.testing.samples import Tally, example, sample, stacked
from echo_shm.transport import ShmTransport

sys.path.insert(0, str(Path(__file__).parent))  # for processes that are spawned
import nursery

SECONDS = float(os.environ.get("ECHO_SOAK_SECONDS", "6"))
MAKERS = 1 << 16
spawning = multiprocessing.get_context("spawn")

pytestmark = pytest.mark.usefixtures("no_memory_left")


@pytest.fixture
def processes() -> Iterator[list[Any]]:
    running: list[Any] = []
    yield running
    for process in running:
        process.kill()
        process.join()
        process.close()


def take(server: Server, tally: Tally, timeout: float) -> bool:
    try:
        one = server.sample(timeout=timeout)
    except EchoTimeoutError:
        return False
    assert one is not None
    tally.add(one.batch)
    return True


@pytest.mark.timeout(int(120 + 3 * SECONDS))
@pytest.mark.parametrize(
    ("batch_size", "filler", "mode"),
    [(1, 48, "direct"), (32, 48, "direct"), (4, 300_000, "direct"), (8, 48, "private")],
)
def test_random_kills_under_load(processes: list[Any], tmp_path: Path, batch_size: int, filler: int, mode: str) -> None:
    counts = tmp_path / "acknowledged"
    counts.write_bytes(bytes(nursery.ENTRY * MAKERS))
    tally, kills, dice = Tally(), 0, random.Random(4)
    with Server(example(filler), batch_size, ShmTransport(mode=mode, claim_timeout=0.2), num_buffers=16) as server:
        ours, theirs = spawning.Pipe()
        nurse = spawning.Process(target=nursery.nurse, args=(theirs, str(server.address), str(counts), filler, {}))
        processes.append(nurse)
        nurse.start()
        theirs.close()

        def fork(maker: int) -> int:
            ours.send(maker)
            assert ours.poll(30)
            pid: int = ours.recv()
            return pid

        workers = {maker: fork(maker) for maker in range(3)}
        makers = len(workers)
        until(lambda: take(server, tally, 0.1) and len(tally.numbers) == 3, "every worker sends", 30)
        before, end, stopped = descriptors(), time.monotonic() + SECONDS / 4, {}
        moved = time.monotonic()
        while time.monotonic() < end:
            turn = time.monotonic() + dice.random() * 0.02
            while time.monotonic() < turn:
                if take(server, tally, 0.1):
                    moved = time.monotonic()
            assert time.monotonic() - moved < 20, f"the learner stopped after {kills} kills"
            maker = dice.choice(list(workers))
            if dice.random() < (0.3 if maker in tally.numbers else 0.02):  # most have begun
                os.kill(workers.pop(maker), signal.SIGKILL)
                stopped.pop(maker, None)
                kills += 1
                workers[makers] = fork(makers)
                makers += 1
            if dice.random() < 0.05:
                maker = dice.choice(list(workers))
                os.kill(workers[maker], signal.SIGSTOP)
                stopped[maker] = time.monotonic() + dice.random() * 0.5
            for maker in [m for m, at in stopped.items() if at < time.monotonic()]:
                os.kill(workers[maker], signal.SIGCONT)
                del stopped[maker]
        for pid in workers.values():
            os.kill(pid, signal.SIGKILL)
        while take(server, tally, 0.3) or server.peers():
            pass
        (listener,) = server._listeners
        until(lambda: listener.stats().get("direct_workers", 0) == 0, "every worker is forgotten")
        with Client(server.address, example(filler)) as last:  # fills what the killed have left open
            number = 0
            while True:
                data = counts.read_bytes()
                acknowledged = [struct.unpack_from("<Q", data, nursery.ENTRY * maker)[0] for maker in range(makers)]
                if all(set(range(acknowledged[m])) <= set(tally.numbers.get(m, [])) for m in range(makers)):
                    break
                assert number < 3 * batch_size, "an acknowledged sample is lost"
                last.send(sample(makers, number, filler))
                number += 1
                while take(server, tally, 0.2):
                    pass
        for maker in range(makers):
            numbers = tally.numbers.get(maker, [])
            assert len(numbers) == len(set(numbers)), "doubled"
        assert kills >= 3
        settled(descriptors, before, "descriptors")
        print(f"{kills} kills, {tally.count} samples, {listener.stats()}")


def test_what_a_killed_worker_held_is_filled_by_others(processes: list[Any]) -> None:
    with Server(example(), 8, ShmTransport()) as server:
        heard, said = spawning.Pipe(duplex=False)
        _asked, asking = spawning.Pipe(duplex=False)
        process = spawning.Process(target=nursery.hold, args=(str(server.address), 4, said, _asked))
        processes.append(process)
        process.start()
        assert heard.poll(30) and heard.recv() == "holding"
        client = Client(server.address, example())
        client.send_batch(stacked(1, 0, 4))
        tally = Tally()
        assert not take(server, tally, 0.2), "half a batch was seen"
        process.kill()
        process.join()
        until(lambda: len(server.peers()) == 1 and server.stats()["store/samples_aborted_total"] == 4, "its slots are free")
        client.send_batch(stacked(1, 4, 4))
        assert take(server, tally, 10)
        tally.check({1: 8}, in_order=False)
        client.close()
        asking.close()


@pytest.mark.parametrize("first", [True, False])
def test_a_stopped_worker_loses_its_claim_and_finds_out(processes: list[Any], first: bool) -> None:
    with Server(example(), 8, ShmTransport(claim_timeout=0.3), num_buffers=4) as server:
        client = Client(server.address, example())
        if not first:
            client.send_batch(stacked(1, 0, 3))
        heard, said = spawning.Pipe(duplex=False)
        asked, asking = spawning.Pipe(duplex=False)
        process = spawning.Process(target=nursery.hold, args=(str(server.address), 2, said, asked))
        processes.append(process)
        process.start()
        assert heard.poll(30) and heard.recv() == "holding"
        os.kill(process.pid, signal.SIGSTOP)
        client.send_batch(stacked(1, 0 if first else 3, 6 if first else 3))
        (listener,) = server._listeners
        until(lambda: listener.stats()["moved_batches"] == 1, "the batch is moved away from it")
        client.send_batch(stacked(1, 6, 10))
        tally = Tally()
        assert take(server, tally, 10) and take(server, tally, 10)
        tally.check({1: 16}, in_order=False)
        os.kill(process.pid, signal.SIGCONT)
        asking.send("go on")
        assert heard.poll(30)
        outcomes = heard.recv()
        assert all("claim_timeout" in outcome for outcome in outcomes), outcomes
        client.send_batch(stacked(1, 16, 6))
        assert take(server, tally, 10)
        tally.check({1: 22, 7: 2}, in_order=False)
        until(lambda: listener.stats()["revoked_claims"] == 2, "it says so")
        client.close()


def test_a_stopped_worker_delays_no_batch_but_its_own(processes: list[Any]) -> None:
    with Server(example(), 4, ShmTransport(claim_timeout=60), num_buffers=4) as server:
        heard, said = spawning.Pipe(duplex=False)
        asked, asking = spawning.Pipe(duplex=False)
        process = spawning.Process(target=nursery.hold, args=(str(server.address), 1, said, asked))
        processes.append(process)
        process.start()
        assert heard.poll(30) and heard.recv() == "holding"
        os.kill(process.pid, signal.SIGSTOP)
        tally = Tally()
        with Client(server.address, example()) as client:
            client.send_batch(stacked(1, 0, 3 + 8))
            assert take(server, tally, 10) and take(server, tally, 10)
            os.kill(process.pid, signal.SIGCONT)
            asking.send("go on")
            assert take(server, tally, 10)
            tally.check({1: 11, 7: 1}, in_order=False)
            assert heard.recv() == ["committed"]


def test_a_killed_learner_leaves_a_socket_that_the_next_one_removes(processes: list[Any], tmp_path: Path) -> None:
    from echo_core.testing import workers

    path = tmp_path / "a.sock"
    heard, said = spawning.Pipe(duplex=False)
    process = spawning.Process(target=workers.learn, args=(f"shm://{path}", 4, said))
    processes.append(process)
    process.start()
    assert heard.poll(30) and heard.recv() == f"shm://{path}"
    process.kill()
    process.join()
    assert path.exists()
    with Server(example(), 4, ShmTransport(str(path))) as server, Client(server.address, example()) as client:
        client.send_batch(stacked(1, 0, 4))
        assert server.sample(timeout=10).batch["number"].tolist() == [0, 1, 2, 3]
    assert not path.exists()


def test_more_memory_than_there_is_is_an_error_with_numbers() -> None:
    with pytest.raises(MemoryError, match=r"[\d,]{12,} bytes"):
        Server({"x": np.zeros(1 << 28, np.uint8)}, 1 << 10, ShmTransport())
    if not any(path.read_text().strip() != "0" for path in Path("/sys/kernel/mm/hugepages").glob("*-2048kB/nr_hugepages")):
        with pytest.raises(MemoryError, match="huge pages"):
            Server(example(), 4, ShmTransport(huge_pages=True))

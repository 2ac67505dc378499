"""Workers that are killed or stopped at any moment: nothing is lost, doubled, torn, wedged or left behind."""

from __future__ import annotations

import mmap
import multiprocessing
import os
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
from echo_core.base.errors import EchoError, EchoTimeoutError
from echo_shm.transport import ShmTransport
from echo_shm.uplink import ShmUplink
from echo_testing.processes import descriptors, settled, stop, until
from echo_testing.samples import Tally, example, stacked

sys.path.insert(0, str(Path(__file__).parent))  # for processes that are spawned
import nursery
from slaughter import Slaughter

SECONDS = float(os.environ.get("ECHO_SOAK_SECONDS", "3"))
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


@pytest.mark.soak
@pytest.mark.timeout(int(120 + 3 * SECONDS))
@pytest.mark.parametrize(
    ("batch_size", "filler", "mode"),
    [(1, 48, "direct"), (32, 48, "direct"), (4, 300_000, "direct"), (8, 48, "private"), (4, 300_000, "private")],
)
def test_random_kills_under_load(tmp_path: Path, batch_size: int, filler: int, mode: str) -> None:
    with Server(example(filler), batch_size, ShmTransport(mode=mode, claim_timeout=0.2), num_buffers=16) as server:
        run = Slaughter(server, tmp_path, filler, seed=4)
        try:
            run.begin()
            before, end = descriptors(), time.monotonic() + SECONDS / 4
            while time.monotonic() < end:
                run.kill()
            run.end()
        finally:
            run.close()
        assert run.kills >= 3
        settled(descriptors, before, "descriptors")
        print(f"{run.kills} kills, {run.samples} samples, {server._listeners[0].stats()}")


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


def no_pidfd(pid: int, flags: int = 0) -> int:
    """Fails as it does for a process that is dead already or in a foreign pid namespace."""
    raise ProcessLookupError(3, "No such process")


def test_a_killed_worker_that_no_pidfd_tells_of_is_missed_all_the_same(processes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", no_pidfd)
    with Server(example(), 8, ShmTransport(claim_timeout=600.0)) as server:
        (listener,) = server._listeners
        heard, said = spawning.Pipe(duplex=False)
        process = spawning.Process(target=nursery.hold_with_a_child, args=(str(server.address), said))
        processes.append(process)
        process.start()
        assert heard.poll(30)
        child = heard.recv()
        try:
            process.kill()
            process.join()
            until(lambda: not listener.stats()["direct_workers"] and server.stats()["store/samples_aborted_total"] == 1, "it is forgotten")
            assert listener.stats()["killed_workers"] == 1
        finally:
            os.kill(child, signal.SIGKILL)
        with Client(server.address, example()) as client:
            client.send_batch(stacked(1, 0, 8))
            assert take(server, Tally(), 10)
        until(lambda: not listener.stats()["direct_workers"], "who left in order is forgotten, too")
        assert listener.stats()["killed_workers"] == 1


def test_a_worker_that_goes_before_it_has_the_store_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: ShmUplink, *_: object) -> None:
        self.end(EchoError("not wanted any more"))

    with Server(example(), 8, ShmTransport()) as server:
        before = descriptors()
        with monkeypatch.context() as patch:
            patch.setattr(ShmUplink, "_attach", refuse)
            with pytest.raises(EchoError, match="not wanted"):
                Client(server.address, example(), timeout=20)
        until(lambda: not server.peers() and not server._listeners[0].stats()["direct_workers"], "its records are free, though this process lives")
        settled(descriptors, before, "descriptors")


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
        stop(process.pid)
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
        stop(process.pid)
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
    from echo_testing import workers

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


@pytest.mark.parametrize("mode", ["direct", "private"])
def test_a_killed_learner_with_a_child_is_left_for_the_next_one(processes: list[Any], mode: str) -> None:
    """The child has copies of all open descriptors, and would keep its parent's connections alive."""
    name = f"fork-{os.getpid()}-{mode}"
    heard, said = spawning.Pipe(duplex=False)
    process = spawning.Process(target=nursery.learn_and_fork, args=(name, mode, said))
    processes.append(process)
    process.start()
    assert heard.poll(30) and heard.recv() == "listening"
    with Client(f"shm://{name}", example()) as client:
        assert heard.poll(30)
        child = heard.recv()
        try:
            process.kill()
            process.join()
            with Server(example(), 4, ShmTransport(name, mode=mode)) as server:
                until(lambda: client.stats()["learner_restarts"] == 1, "the worker has come to the next learner")
                client.send_batch(stacked(1, 0, 4))
                assert server.sample(timeout=20).batch["number"].tolist() == [0, 1, 2, 3]
        finally:
            os.kill(child, signal.SIGKILL)


OPEN, BUFFER_BYTES = 2, 64  # a state of a batch buffer, and the size of its words (area.hpp)


def forget_when(fd: int, batch_size: int) -> int:
    """Change every complete batch as if its last writer had been killed before it could say when the batch was complete. Returns their number."""
    found = 0
    with mmap.mmap(fd, 64 << 10) as words:
        for at in range(0, len(words), BUFFER_BYTES):
            progress, order, ready_at = struct.unpack_from("<QQq", words, at)
            if progress & 0xFFFFFFFF == batch_size and progress >> 32 & 7 == OPEN and 0 < order < 100 and ready_at > 0:
                struct.pack_into("<q", words, at + 16, 0)
                found += 1
    return found


def test_a_writer_killed_before_it_said_when_delays_no_complete_batch() -> None:
    with Server(example(), 4, ShmTransport(claim_timeout=600.0), num_buffers=4) as server, Client(server.address, example()) as client:
        slot = client.reserve()  # of the first batch
        client.send_batch(stacked(1, 0, 3 + 4))
        assert forget_when(server._listeners[0].shared.fd, 4) == 1
        assert server.sample(timeout=5).batch["number"].tolist() == [3, 4, 5, 6]
        slot.abort()
        until(lambda: server.stats()["store/samples_aborted_total"] == 1, "it was given back")
        client.send_batch(stacked(1, 7, 1))
        assert sorted(server.sample(timeout=5).batch["number"].tolist()) == [0, 1, 2, 7]


def test_more_memory_than_there_is_is_an_error_with_numbers() -> None:
    with pytest.raises(MemoryError, match=r"[\d,]{12,} bytes"):
        Server({"x": np.zeros(1 << 28, np.uint8)}, 1 << 10, ShmTransport())
    if not any(path.read_text().strip() != "0" for path in Path("/sys/kernel/mm/hugepages").glob("*-2048kB/nr_hugepages")):
        with pytest.raises(MemoryError, match="huge pages"):
            Server(example(), 4, ShmTransport(huge_pages=True))

"""The private mode: each worker has a lane, from which the learner copies and in which it trusts nothing."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.base.errors import EchoTimeoutError, SecurityError
from echo_shm.lanes import Lane
from echo_shm.sockets import UnixChannel
from echo_shm.transport import ShmTransport
from echo_testing.processes import descriptors, returns, settled, until
from echo_testing.samples import Tally, example, sample, stacked

sys.path.insert(0, str(Path(__file__).parent))  # for processes that are spawned
import vandal

SECONDS = float(os.environ.get("ECHO_SOAK_SECONDS", "3"))
HONEST, HOSTILE = 1, 666
spawning = multiprocessing.get_context("spawn")

pytestmark = pytest.mark.usefixtures("no_memory_left")


def private(path: str = "", **options: Any) -> ShmTransport:
    return ShmTransport(path, mode="private", **options)


@pytest.fixture
def spawn() -> Iterator[Any]:
    """Start a process, with its end of a pipe as the last argument. Returns this process's end."""
    running: list[Any] = []

    def start(target: Any, *args: Any) -> Any:
        heard, said = spawning.Pipe(duplex=False)
        process = spawning.Process(target=target, args=(*args, said))
        running.append(process)
        process.start()
        said.close()
        return heard

    yield start
    for process in running:
        process.kill()
        process.join()
        process.close()


def hear(pipe: Any) -> Any:
    assert pipe.poll(60), "the process says nothing"
    return pipe.recv()


def drain(server: Server, count: int, tally: Tally | None = None) -> Tally:
    tally = tally or Tally()
    while tally.count < count:
        tally.add(server.sample(timeout=20).batch)
    return tally


# ---- samples ---------------------------------------------------------------------------------------------------


def test_samples_go_round_a_small_lane_in_order() -> None:
    with Server(example(), 8, private(lane_bytes=4096), num_buffers=2) as server, Client(server.address, example(), patience=0.0) as client:

        def work() -> None:
            for number in range(0, 6000, 12):
                client.send(sample(1, number))
                client.send_batch(stacked(1, number + 1, 11))

        worker = threading.Thread(target=work)
        worker.start()
        tally = drain(server, 3000)
        time.sleep(0.2)  # everything is full
        drain(server, 6000, tally)
        worker.join()
        client.wait(timeout=10)
        tally.check({1: 6000})
        stats = client.stats()
        assert stats["mode"] == "private" and stats["acknowledged"] == stats["samples"] == 6000 > stats["direct_samples"] > 0
        (listener,) = server._listeners
        assert listener.stats()["samples"] == 6000 and listener.stats()["private_workers"] == 1


@pytest.mark.parametrize("filler", [1, 300_000, 5_000_000])
def test_any_size_of_sample_has_a_lane(filler: int) -> None:
    with Server(example(filler), 3, private()) as server, Client(server.address, example(filler)) as client:
        worker = threading.Thread(target=lambda: [client.send(sample(1, number, filler)) for number in range(12)])
        worker.start()
        drain(server, 12).check({1: 12})
        worker.join()
        assert client.stats()["mode"] == "private"


def test_acknowledged_means_copied_and_committed() -> None:
    with Server(example(), 2, private(), num_buffers=2) as server, Client(server.address, example()) as client:
        client.send_batch(stacked(1, 0, 10))  # four fit into the store, six stay in the lane
        with pytest.raises(EchoTimeoutError, match="6 samples unacknowledged"):
            client.wait(timeout=0.2)
        assert client.stats()["acknowledged"] == 4 and client.stats()["unacknowledged"] == 6
        tally = drain(server, 4)
        waiting = threading.Thread(target=lambda: client.wait(timeout=20))
        waiting.start()
        drain(server, 10, tally).check({1: 10})
        waiting.join(5)
        assert not waiting.is_alive()


def test_a_restarted_learner_gets_what_lay_in_the_lane(tmp_path: Path) -> None:
    name = f"echo-test-{os.getpid()}"
    first = Server(example(), 4, private(name), num_buffers=2)
    client = Client(first.start().address, example(), timeout=30)
    client.send_batch(stacked(1, 0, 30))
    until(lambda: client.stats()["acknowledged"] == 8, "the store is full")
    tally = drain(first, 8)
    until(lambda: client.stats()["acknowledged"] == 16, "it is full again")
    first.close(timeout=0, restarting=True)
    for number in range(30, 40):  # while no learner is there
        client.send(sample(1, number))
    # The lane is smaller than the first one, so not all samples that come back fit at once.
    with Server(example(), 4, private(name, lane_bytes=4096), num_buffers=2) as second:
        rest = drain(second, 24)
        client.wait(timeout=20)
        assert rest.numbers[1] == list(range(16, 40)), "what was not committed, in order"
        stats = client.stats()
        assert stats["samples"] == stats["acknowledged"] == 40 and stats["learner_restarts"] == 1
        client.close()
    assert tally.numbers[1] == list(range(8))


def test_a_lane_that_cannot_be_had_is_replaced_by_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    with Server(example(), 4, private(), num_buffers=8) as server:
        monkeypatch.setattr(os, "posix_fallocate", full)
        with Client(server.address, example()) as client:
            monkeypatch.undo()
            client.send_batch(stacked(1, 0, 8))
            drain(server, 8).check({1: 8})
            assert client.stats()["mode"] == "socket"


@pytest.mark.parametrize(("thread", "mode"), [("echo-copier", "socket"), ("echo-shm-keeper", "private")])
def test_at_the_limit_of_threads_samples_go_another_way(thread: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def limited(self: threading.Thread) -> None:
        if self.name == thread:
            raise RuntimeError("can't start new thread")
        start(self)

    with Server(example(), 4, ShmTransport(mode="private" if thread == "echo-copier" else "direct"), num_buffers=8) as server:
        before = descriptors()
        monkeypatch.setattr(threading.Thread, "start", limited)
        for _ in range(2):
            with Client(server.address, example(), timeout=20) as client:
                client.send_batch(stacked(1, 0, 8))
                drain(server, 8).check({1: 8})
                assert client.stats()["mode"] == mode
        until(lambda: not server.peers(), "they have left")
        monkeypatch.undo()
        settled(descriptors, before, "descriptors")
        with Client(server.address, example()) as client:
            assert client.stats()["mode"] == ("private" if thread == "echo-copier" else "direct")


def test_a_lane_whose_descriptor_cannot_be_handed_over_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: UnixChannel, fd: int) -> None:
        raise OSError(24, "Too many open files")

    with Server(example(), 4, private(), num_buffers=8) as server:
        monkeypatch.setattr(UnixChannel, "give", none_left)
        with Client(server.address, example()) as client:
            client.send_batch(stacked(1, 0, 8))
            drain(server, 8).check({1: 8})
            assert client.stats()["mode"] == "socket"
            until(lambda: not any(thread.name == "echo-copier" for thread in threading.enumerate()), "nobody copies")


def test_lanes_come_and_go_and_leave_nothing() -> None:
    with Server(example(), 2, private(), num_buffers=8) as server:

        def visit(number: int) -> None:
            with Client(server.address, example()) as client:
                client.send_batch(stacked(number, 0, 2))
                drain(server, 2).check({number: 2})

        visit(0)
        until(lambda: not server.peers(), "it has left")
        before = descriptors()
        for number in range(1, 20):
            visit(number)
        until(lambda: not server.peers(), "all have left")
        settled(descriptors, before, "descriptors")
        assert server._listeners[0].stats()["samples"] == 40


def test_a_replay_table_is_filled_through_lanes_and_requests_follow_their_samples() -> None:
    with Server(example(), 4, ShmTransport(), sampler="uniform", capacity=10_000) as server, Client(server.address, example()) as client:
        assert client.stats()["mode"] == "private", "its store is no stream's, so that none is handed out"
        for number in range(0, 4000, 400):
            client.send_batch(stacked(1, number, 400))
            keys = client.table().sample(8).keys  # served after the samples that were sent before it
            assert len(server.table()) == number + 400, keys


# ---- untrusted workers -----------------------------------------------------------------------------------------


def test_a_worker_sees_its_lane_and_nothing_else(spawn: Any) -> None:
    with Server(example(), 1, private()) as server:
        server.publish({"w": np.arange(10)})
        seen, writable, refused, version = hear(spawn(vandal.look, str(server.address)))
        assert seen == ["echo-lane", "echo-weights"]
        assert writable == ["echo-lane"] and refused == [] and version == 1


@pytest.mark.parametrize("written", [(1 << 64) - 1, 1 << 63, 1 << 32, 16385])
def test_a_false_count_ends_the_connection_and_nothing_else(spawn: Any, written: int) -> None:
    with Server(example(), 4, private(), num_buffers=8) as server, Client(server.address, example()) as honest:
        honest.send_batch(stacked(HONEST, 0, 4))
        assert "nothing happened" not in hear(spawn(vandal.count, str(server.address), written))
        until(lambda: server._listeners[0].stats()["protocol_errors"] == 1, "it is counted")
        honest.send_batch(stacked(HONEST, 4, 4))
        drain(server, 8).check({HONEST: 8})


@pytest.mark.soak
@pytest.mark.timeout(int(120 + 2 * SECONDS))
def test_rubbish_all_over_a_lane_hurts_nobody_else(spawn: Any) -> None:
    with Server(example(), 4, private(), num_buffers=16) as server, Client(server.address, example()) as honest:
        server.publish({"w": np.full(1000, 1.0)})
        vandals = [spawn(vandal.scribble, str(server.address), HOSTILE + i, SECONDS) for i in range(2)]
        for one in vandals:
            assert hear(one) == "begins"
        sent, over = 0, threading.Event()

        def work() -> None:
            nonlocal sent
            while not over.is_set():
                honest.send_batch(stacked(HONEST, sent, 4))
                sent += 4
                honest.wait(timeout=20)  # it is never kept waiting for long

        worker = threading.Thread(target=work)
        worker.start()
        arrived: list[int] = []

        def take(timeout: float) -> bool:
            try:
                batch = server.sample(timeout=timeout).batch
            except EchoTimeoutError:
                return False
            # Rows of the hostile worker are invalid and may name any worker, so only whole rows count.
            expected = stacked(HONEST, 0, 1)["filler"][0].astype(np.uint64) + batch["number"].astype(np.uint64)[:, None] * np.uint64(7)
            whole = (batch["maker"] == HONEST) & (batch["filler"] == expected.astype(np.uint8)).all(axis=1)
            arrived.extend(batch["number"][whole].tolist())
            return True

        end = time.monotonic() + SECONDS
        while time.monotonic() < end or sent <= 100:
            assert take(10), "the learner gets nothing any more"
        over.set()
        while worker.is_alive():
            take(0.05)
        visits = [0, 0]
        for i, one in enumerate(vandals):
            while not one.poll(0):
                take(0.05)
            visits[i] = one.recv()
        until(lambda: not take(0.3) and len(server.peers()) == 1, "they are gone")
        honest.send_batch(stacked(2, 0, 3))  # so that nothing of the last batch, which the hostile worker has begun, is left
        until(lambda: not take(0.3) and not honest.stats()["unacknowledged"], "everything has come")
        assert sorted(arrived) == list(range(sent)) and arrived == sorted(arrived)
        assert min(visits) > 2
        assert returns(lambda: server.publish({"w": np.full(1000, 2.0)})).version == 2
        assert (honest.weights(timeout=10, newer_than=1).params["w"] == 2.0).all()
        print(f"{visits} visits, {sent} samples in between, {server._listeners[0].stats()}")


def test_the_memory_of_a_lane_is_sealed() -> None:
    with Server(example(), 4, private()) as server:
        lane = Lane(server._listeners[0].sink, 4096, 10)
        try:
            seals = fcntl.fcntl(lane.fd, fcntl.F_GET_SEALS)
            assert seals & fcntl.F_SEAL_SHRINK and seals & fcntl.F_SEAL_GROW and seals & fcntl.F_SEAL_SEAL
        finally:
            lane.handed_over()
        del lane


# ---- clients that may not have memory at all ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["direct", "private"])
def test_an_observer_gets_no_memory(mode: str) -> None:
    with Server(example(), 4, ShmTransport(mode=mode)) as server:
        with Client(server.address, example(), role="observer") as watcher:
            assert watcher.stats()["mode"] == "socket"
            for wanted in ("direct", "private"):
                with pytest.raises(SecurityError, match="observer"):
                    watcher.request("shm/attach", {"records": 1, "mode": wanted, "rows": 8})
            with pytest.raises(SecurityError, match="observer"):
                watcher.send(sample(1, 0))
            server.publish({"w": np.arange(3)})
            assert watcher.weights(timeout=10).version == 1, "it may watch"
        assert server._listeners[0].stats()["direct_workers"] == server._listeners[0].stats()["private_workers"] == 0

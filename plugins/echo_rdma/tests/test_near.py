"""A learner on the worker's machine reads samples in place, in memory that UCX shares, and reads only memory that really exists."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from echo_core import Client, Server
from echo_core.base.errors import EchoTimeoutError
from echo_rdma.transport import RdmaTransport
from echo_testing import workers
from echo_testing.processes import until
from echo_testing.samples import Tally, example, stacked

pytestmark = pytest.mark.usefixtures("ucx", "shared_memory")


@pytest.fixture(autouse=True)
def _lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "sysv,tcp")
    monkeypatch.setenv("ECHO_TOKEN", "the-token-of-these-tests-long-enough")


def exchange(filler: int, **options: Any) -> dict[str, Any]:
    """The learner's counters after 40 samples. All arrived whole and in order, and each batch came after the previous one had been taken."""
    tally = Tally()
    with Server(example(filler), 4, RdmaTransport(port=0), num_buffers=4) as server, Client(server.address, example(filler), **options) as client:
        for first in range(0, 40, 4):
            client.send_batch(stacked(1, first, 4, filler))
            one = server.sample(timeout=30)
            assert one is not None
            tally.add(one.batch)
            del one
            client.wait()  # by then the learner has said that it reads the memory
        until(lambda: server.stats()["transport/rdma/samples"] == 40, "they are counted", 20)  # a batch can be here before that
        stats = server.stats()
    assert tally.numbers == {1: list(range(40))}
    return stats


@pytest.mark.parametrize("filler", [1, 48, 30_000, 1_000_000])
def test_samples_are_read_where_they_lie(filler: int) -> None:
    stats = exchange(filler)
    assert stats["transport/rdma/shown"] >= 32  # all but those that leave before the learner has said that it reads the memory


def test_without_memory_to_share_they_go_as_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_ALLOC_PRIO", "heap")
    assert exchange(30_000)["transport/rdma/shown"] == 0


def test_tcp_hands_out_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    assert exchange(30_000)["transport/rdma/shown"] == 0


def test_more_samples_than_the_shared_memory_holds() -> None:
    """An empty window takes a batch of any size. Samples that find no place in the shared memory travel as messages, in order with the rest."""
    filler, tally = 100_000, Tally()
    with Server(example(filler), 8, RdmaTransport(port=0), num_buffers=16) as server:
        with Client(server.address, example(filler), max_inflight_msgs=4) as client:
            client.send_batch(stacked(1, 0, 4, filler))
            client.wait()
            client.send_batch(stacked(1, 4, 60, filler))
            client.wait()
            assert 0 < server.stats()["transport/rdma/shown"] < 60
        for _ in range(8):
            one = server.sample(timeout=30)
            assert one is not None
            tally.add(one.batch)
            del one
    assert tally.numbers == {1: list(range(64))}


def test_a_slow_learner_is_given_the_whole_window_to_be_behind() -> None:
    """While the learner keeps up, a worker is only a little ahead, so that samples are still in a cache. This must not stop a worker whose learner pauses."""
    filler, sent = 100_000, 0
    with Server(example(filler), 4, RdmaTransport(port=0), num_buffers=4) as server:
        client = Client(server.address, example(filler), window_bytes=16 << 20)
        client.send_batch(stacked(1, 0, 4, filler))
        client.wait()  # by then the learner has said that it reads
        with pytest.raises(EchoTimeoutError):
            for sent in range(4, 1000):
                client.send_batch(stacked(1, sent, 1, filler), timeout=0.5)
        with pytest.raises(EchoTimeoutError, match="not acknowledged|unacknowledged"):
            client.close(timeout=0)
    assert sent >= 16 + 160  # the store, and a window of 167


def test_the_shared_memory_ends_with_the_worker() -> None:
    """No memory of a killed worker stays mapped in the learner."""
    spawning = multiprocessing.get_context("spawn")
    _, ready = spawning.Pipe(duplex=False)
    before = segments()
    with Server(example(5000), 4, RdmaTransport(port=0, heartbeat=0.2, lease=1.0), num_buffers=4) as server:
        arguments = (str(server.address), 1, 5000, False, ready, {"heartbeat": 0.2, "lease": 1.0})
        worker = spawning.Process(target=workers.pour, args=arguments, daemon=True)
        worker.start()
        try:
            until(lambda: server.sample(timeout=30) is not None and server.stats()["transport/rdma/shown"] > 0, "its memory is read", 60)
            connected = segments()
        finally:
            worker.kill()
            worker.join()
        until(lambda: not server.peers(), "the loss is noticed", 20)
        until(lambda: segments() < connected, "its memory is let go", 20)
    assert segments() <= before + 1  # memory of this process's own UCX, which belongs to the context


def segments() -> int:
    """The System V shared memory that is mapped into this process."""
    return sum("/SYSV" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_young_connection_carries_samples_at_once() -> None:
    """UCX 1.15 would crash the process (see `library.shares_memory`)."""
    for _ in range(8):
        with Server(example(30_000), 4, RdmaTransport(port=0)) as server, Client(server.address, example(30_000)) as client:
            client.send_batch(stacked(1, 0, 4, 30_000))
            assert server.sample(timeout=30) is not None

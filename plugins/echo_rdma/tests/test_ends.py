"""Both ends of samples in difficult moments: a learner that is gone, a close in the middle of a copy, a worker that repeats samples."""

from __future__ import annotations

import logging
import math
import socket
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.spec.spec import Spec
from echo_rdma import _ucx, channel
from echo_rdma.connection import RENDEZVOUS_BYTES, message_bytes
from echo_rdma.listener import RdmaListener
from echo_rdma.options import RdmaConnectOptions
from echo_testing.processes import until

EXAMPLE = {"x": np.zeros(4, np.float32)}
SPEC = Spec.from_example(EXAMPLE)


@pytest.fixture(autouse=True)
def _lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("ECHO_TOKEN", "the-token-of-these-tests-long-enough")


@pytest.mark.usefixtures("ucx")
def test_a_window_keeps_the_engine_that_it_rings() -> None:
    """The connection of an engine may have failed, and nothing else may refer to the engine. `send` wakes it until there is another one."""
    window = _ucx.Window(SPEC, 8, 4096)
    engines = [channel.engine(RdmaConnectOptions()) for _ in range(2)]
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        wires = [engine.connect("127.0.0.1", nobody.getsockname()[1]) for engine in engines]

    def held() -> list[int]:
        return [sys.getrefcount(engine) for engine in engines]

    before = held()
    window.attach(wires[0])
    assert held() == [before[0] + 1, before[1]]
    engines[0].stop()
    window.send(EXAMPLE)
    window.attach(wires[1])
    assert held() == [before[0], before[1] + 1]
    window.detach()
    assert held() == before
    engines[1].stop()


@pytest.mark.usefixtures("ucx")
def test_a_send_that_fails_says_what_ucx_said() -> None:
    """The endpoint fails while `send` waits for the engine's lock. The reason must not be lost then: it tells the user what to do."""
    engine = channel.engine(RdmaConnectOptions())
    try:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            for _ in range(20):
                wire = engine.connect("127.0.0.1", nobody.getsockname()[1])
                with pytest.raises(ConnectionAbortedError) as sent:
                    while True:
                        wire.send([b"hello"])
                with pytest.raises(ConnectionResetError) as received:
                    wire.receive()
                assert str(sent.value) == str(received.value)
    finally:
        engine.stop()


def test_stopping_counts_what_is_being_copied() -> None:
    """Otherwise close() would find nothing to wait for, and the sample of a successful call would be lost."""
    sample = {"x": np.ones(128 << 20, np.uint8)}
    for pause in (0.002, 0.005, 0.01):
        window, begun, taken = _ucx.Window(Spec.from_example(sample), 1, 4096), threading.Event(), []

        def copy(window: _ucx.Window = window, begun: threading.Event = begun, taken: list[int] = taken) -> None:
            begun.set()
            taken.append(window.take(sample))

        thread = threading.Thread(target=copy)
        thread.start()
        begun.wait()
        time.sleep(pause)
        window.stop()
        counted = window.taken
        thread.join()
        assert [counted] == taken == [window.taken]


@pytest.mark.usefixtures("ucx")
def test_closing_delivers_what_another_thread_is_sending() -> None:
    sample = {"x": np.ones(128 << 20, np.uint8)}
    sent: list[object] = []

    def send() -> None:
        client.send(sample)
        sent.append(True)

    with Server(sample, 1, "rdma://127.0.0.1:0", num_buffers=2) as server:
        client = Client(server.address, sample)
        thread = threading.Thread(target=send)
        thread.start()
        time.sleep(0.01)
        client.close(60)
        thread.join()
        stats = client._connection.stats()
        assert sent and stats["samples"] == stats["acknowledged"] == 1
        one = server.sample(timeout=30)
        assert one is not None
        del one


@pytest.mark.usefixtures("ucx")
def test_a_worker_that_repeats_itself_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """A worker's credit bounds its samples at the learner only because it sends each sample once."""
    caplog.set_level(logging.WARNING, "echo")
    example = {"x": np.zeros(5000, np.float32)}
    with Server(example, 4, "rdma://127.0.0.1:0", num_buffers=2) as server, Client(server.address, example) as client:
        client.send_batch({"x": np.zeros((40, 5000), np.float32)})
        until(lambda: server.stats()["transport/rdma/messages"] > 2 and client.stats()["acknowledged"] == 8, "the store is full", 20)
        window: Any = client._connection
        window = window.uplink.window
        window.resume(window.acknowledged)
        until(lambda: client.stats()["reconnects"] > 0, "it is given up", 20)
        for _ in range(10):  # that was an accident: all samples arrive once
            one = server.sample(timeout=30)
            assert one is not None
            del one
        client.wait(30)
        until(lambda: server.stats()["transport/rdma/samples"] == 40, "they are counted", 20)
    assert any("broke the protocol" in record.getMessage() and "again" in record.getMessage() for record in caplog.records)


@pytest.mark.usefixtures("ucx")
def test_settling_at_the_same_time_counts_nothing_twice() -> None:
    with Server(EXAMPLE, 1, "rdma://127.0.0.1:0", num_buffers=64) as server, Client(server.address, EXAMPLE) as client:
        listener: Any = next(one for one in server._listeners if isinstance(one, RdmaListener))
        served, lock = listener.serving()[0], listener.settling

        class Preempted:
            """The engine that leaves it first is overtaken by another one there."""

            used = False

            def __enter__(self) -> None:
                lock.acquire()

            def __exit__(self, *error: object) -> None:
                lock.release()
                if not self.used:
                    self.used = True
                    for _ in range(5):
                        client.send(EXAMPLE)
                    client.wait()
                    served.settle()

        for _ in range(10):
            client.send(EXAMPLE)
        client.wait()
        listener.settling = Preempted()
        served.settle()
        listener.settling = lock
        assert server.stats()["transport/rdma/samples"] == 15


@pytest.mark.usefixtures("ucx")
@pytest.mark.parametrize("lease", [1e10, math.inf])
def test_a_lease_that_never_ends(lease: float) -> None:
    with Server(EXAMPLE, 1, f"rdma://127.0.0.1:0?lease={lease}") as server, Client(server.address, EXAMPLE, lease=lease, timeout=20) as client:
        client.send(EXAMPLE)
        client.wait()


@pytest.mark.parametrize(
    ("lanes", "sample", "most"),
    [
        (("rc_mlx5/mlx5_0:1",), 20, RENDEZVOUS_BYTES),
        (("rc_mlx5/mlx5_0:1", "tcp/lo"), 100 << 20, 100 << 20),
        (("tcp/lo",), 100 << 20, 64000),
        (("sysv/memory", "tcp/lo"), 100 << 20, 32000),
    ],
)
def test_through_a_card_a_sample_is_one_message(lanes: tuple[str, ...], sample: int, most: int) -> None:
    """In parts, it would travel without rendezvous and through the learner's processor."""
    assert message_bytes(lanes, sample) == most

"""The original protocol, against the original server (id-echo)."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from echo_core.base.address import Address
from echo_core.base.errors import (
    ClosedError,
    ConnectionClosedError,
    EchoError,
    EchoTimeoutError,
    HandshakeRefused,
    ProtocolError,
    SpecError,
)
from echo_core.spec.spec import Spec
from echo_tcp.transport import TcpTransport
from echo_testing.processes import until

EXAMPLE = {"frame": np.zeros((50, 50), np.uint8), "reward": np.zeros(1, np.float64)}
BATCH = 10


def sample(i: int) -> dict[str, np.ndarray]:
    return {"frame": np.full((50, 50), i % 251, np.uint8), "reward": np.array([i], np.float64)}


def connect(port: int, example: Any = EXAMPLE, **options: Any) -> Any:
    address = Address("tcp", "127.0.0.1", port)
    spec = Spec.from_example(example)
    return TcpTransport.connect(address, spec, protocol="echo1", **options)


# The original server ends neither its threads nor its descriptors, so it has a process of its own:
# it prints its port, and for each line with a number it prints the samples of so many batches.
SERVER = """
import json, sys, echo, numpy as np
example = {"frame": np.zeros((50, 50), np.uint8), "reward": np.zeros(1, np.float64)}
server = echo.Server(example, 10, echo.TcpTransport(0, num_threads=1), num_drainers=1)
server.start()
print(server.port, flush=True)
for line in sys.stdin:
    numbers = []
    for _ in range(int(line)):
        batch = server.sample().batch
        numbers += [int(r[0]) for r in batch["reward"]]
        assert np.all(batch["frame"] == (batch["reward"] % 251).reshape(-1, 1, 1))
    print(json.dumps(numbers), flush=True)
"""


class Server:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def take(self, batches: int) -> list[int]:
        """The numbers of the next samples; checks that these are whole."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{batches}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def server() -> Iterator[Server]:
    pytest.importorskip("echo", reason="id-echo is not installed")
    server = Server()
    yield server
    server.kill()


def test_samples_reach_an_original_server(server: Server) -> None:
    worker = connect(server.port)
    feeder = threading.Thread(target=lambda: [worker.send(sample(i)) for i in range(1000)])
    feeder.start()
    assert server.take(100) == list(range(1000))
    feeder.join(20)
    worker.wait()
    assert worker.stats()["acknowledged"] == 1000
    batch = {"frame": np.zeros((20, 50, 50), np.uint8), "reward": np.zeros((20, 1))}
    for i in range(20):
        batch["frame"][i], batch["reward"][i] = i, i
    worker.send_batch(batch)
    assert server.take(2) == list(range(20))
    worker.send(sample(0))
    worker.close()
    with pytest.raises(ClosedError):
        worker.send(sample(0))


def test_a_full_original_server_holds_the_worker_back(server: Server) -> None:
    with connect(server.port, max_inflight_msgs=8) as worker:
        with pytest.raises(EchoTimeoutError, match="to commit"):
            for i in range(1000):
                worker.send(sample(i), timeout=0.3)
        stats = worker.stats()
        assert stats["unacknowledged"] == 8
        taken = stats["samples"]
        got: list[int] = []
        while len(got) < taken - taken % BATCH:
            got += server.take(1)
        assert got == list(range(len(got)))
        worker.wait()


def test_another_example_is_refused_by_leaf(server: Server) -> None:
    with pytest.raises(SpecError, match=r"reward.*8-byte.*4-byte"):
        connect(server.port, {**EXAMPLE, "reward": np.zeros(1, np.float32)})
    with pytest.raises(SpecError, match=r"frame.*\(50, 50\).*\(2500,\)"):
        connect(server.port, {**EXAMPLE, "frame": np.zeros(2500, np.uint8)})
    with pytest.raises(SpecError, match="2 arrays"):
        connect(server.port, EXAMPLE["frame"])
    with pytest.raises(SpecError, match="without any bytes"):
        connect(server.port, np.zeros(0))


def test_only_samples_travel(server: Server) -> None:
    with connect(server.port) as worker:
        for call in (worker.weights, lambda: worker.request("x", {})):
            with pytest.raises(EchoError, match="original protocol"):
                call()


def serve(reply: bytes) -> tuple[int, threading.Thread]:
    """A server that sends `reply` to one client and hangs up when the client does."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listener:
            client, _ = listener.accept()
        with client, suppress(ConnectionError):
            client.sendall(reply)
            while client.recv(1 << 16):
                pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return listener.getsockname()[1], thread


GREETING = b"ECHO\x01" + struct.pack("<8I", 2, 1, 2, 50, 50, 8, 1, 1)


def test_a_killed_original_server_ends_every_call(server: Server) -> None:
    worker = connect(server.port, max_inflight_msgs=1)
    worker.send(sample(0))
    worker.wait()
    server.kill()
    with pytest.raises(ConnectionClosedError):
        while True:
            worker.send(sample(1))
    with pytest.raises(ConnectionClosedError):
        worker.wait()
    with suppress(ConnectionClosedError):  # the error comes only if a sample is missing
        worker.close()


def test_a_lost_original_server_is_final() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    worker: list[Any] = []
    thread = threading.Thread(target=lambda: worker.append(connect(listener.getsockname()[1])))
    thread.start()
    client, _ = listener.accept()
    client.sendall(GREETING)
    thread.join(20)
    for i in range(5):
        worker[0].send(sample(i))
    client.recv(1000)
    client.sendall(b"\x01")
    until(lambda: worker[0].stats()["acknowledged"] == 1, "one is acknowledged")
    client.close()
    listener.close()
    with pytest.raises(ConnectionClosedError):
        worker[0].wait()
    with pytest.raises(ConnectionClosedError):
        worker[0].send(sample(5))
    with pytest.raises(ConnectionClosedError, match="4 samples"):
        worker[0].close()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.1 400 Bad Request", ProtocolError),
        (b"ECHO\x03" + bytes(20), HandshakeRefused),
        (b"ECHO\x01\xff\xff\xff\xff", ProtocolError),
        (b"ECHO\x01" + struct.pack("<3I", 1, 1, 1 << 30), ProtocolError),
    ],
)
def test_not_an_original_server(reply: bytes, error: type[Exception]) -> None:
    port, thread = serve(reply)
    with pytest.raises(error):
        connect(port)
    thread.join(20)


@pytest.mark.parametrize("wrong", [b"\x02", b"\x01"], ids=["no answer", "one too many"])
def test_answers_that_are_no_acknowledgements(wrong: bytes) -> None:
    port, thread = serve(GREETING + wrong)
    with pytest.raises(ProtocolError):
        worker = connect(port)
        try:
            until(worker.flush, "the error is noticed")
        finally:
            with suppress(ConnectionClosedError):
                worker.close()
    thread.join(20)

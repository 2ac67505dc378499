"""The option `checksum`: bytes that were damaged on their way never reach the store."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from echo_core import Client, ConfigError, EchoTimeoutError, Server
from echo_core.testing.processes import until
from echo_core.testing.relay import Relay
from echo_tcp.channels import checksum
from echo_tcp.channels.checksum import CheckedChannel
from echo_tcp.transport import TcpTransport

EXAMPLE = {"x": np.zeros(500, np.int64)}


def serve(**options: Any) -> Server:
    return Server(EXAMPLE, 10, TcpTransport(port=0, checksum=True), num_buffers=64, **options)


def test_damaged_samples_are_sent_again() -> None:
    with serve() as server, Relay(server.address.endpoint) as relay:
        address = replace(server.address, port=relay.port)
        with Client(address, EXAMPLE, checksum=True) as client:
            for number in range(300):
                if number % 100 == 50:
                    client.wait()
                    relay.cut("up", 3000)  # behind the handshake
                client.send({"x": np.full(500, number)})
            client.wait()
            seen = [int(row[0]) for _ in range(30) for row in server.sample(10).batch["x"] if (row == row[0]).all()]
            assert seen == list(range(300))
            assert server.stats()["transport/tcp/damaged_total"] == relay.damaged == 3


@pytest.mark.parametrize("at", [0, 3, 4, 8, 100, -1])
def test_a_changed_bit_anywhere_is_noticed(at: int) -> None:
    ours, theirs = socket.socketpair()
    with closing(CheckedChannel(ours, "a")) as sender, theirs:
        sender.send([bytes(range(200))])
        data = bytearray(theirs.recv(1000))
    data[at] ^= 4
    ours, theirs = socket.socketpair()
    damaged: list[int] = []
    with closing(CheckedChannel(ours, "a", lambda: damaged.append(1))) as receiver, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            receiver.recv_into(memoryview(bytearray(1000)))


def test_bytes_keep_their_order_in_any_pieces() -> None:
    ours, theirs = socket.socketpair()
    whole = np.random.default_rng(1).bytes(300_000)
    pieces = [whole[:1], whole[1:70_000], b"", memoryview(whole)[70_000:270_000], whole[270_000:]]
    with closing(CheckedChannel(ours, "a")) as sender, closing(CheckedChannel(theirs, "b")) as receiver:
        import threading

        thread = threading.Thread(target=lambda: (sender.send(pieces), sender.shutdown()))
        thread.start()
        got, room = bytearray(), memoryview(bytearray(777))
        while n := receiver.recv_into(room):
            got += room[:n]
        thread.join()
    assert got == whole


def test_one_end_with_checksums_and_one_without_is_an_error() -> None:
    with serve() as server, pytest.raises(EchoTimeoutError, match=r"as one with TLS \(tcps://\) or with checksum=true does"):
        Client(server.address, EXAMPLE, timeout=1)
    with Server(EXAMPLE, 10, TcpTransport(port=0)) as server, pytest.raises(EchoTimeoutError, match="as one without checksum=true does"):
        Client(server.address, EXAMPLE, checksum=True, timeout=1)


def test_the_learner_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with serve() as server:
        with pytest.raises(EchoTimeoutError):
            Client(server.address, EXAMPLE, timeout=0.5)
        until(lambda: "give both ends checksum=true" in caplog.text, "the reason is in the log")


def test_without_the_package_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "crc32c", None)
    with pytest.raises(ConfigError, match="pip install crc32c"):
        serve().start()
    with pytest.raises(ConfigError, match="pip install crc32c"):
        Client("tcp://127.0.0.1:1", EXAMPLE, checksum=True)


@pytest.mark.parametrize("make", [lambda: TcpTransport(protocol="echo1", checksum=True)])
def test_the_original_protocol_has_none(make: Any) -> None:
    with pytest.raises(ConfigError, match="no checksums"):
        make()

"""The option `checksum`: bytes that were damaged on their way never reach the store."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from echo_core import Client, ConfigError, EchoTimeoutError, Server
from echo_tcp.channels import checksum
from echo_tcp.channels.checksum import CheckedChannel
from echo_tcp.transport import TcpTransport
from echo_testing.processes import returns, until
from echo_testing.relay import Relay
from echo_testing.rig import PATIENCE

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


def records(*contents: bytes) -> list[bytes]:
    """What a channel writes for each of these, sent one after another."""
    ours, theirs = socket.socketpair()
    written = []
    with closing(CheckedChannel(ours, "a")) as sender, theirs:
        for content in contents:
            sender.send([content])
            written.append(theirs.recv(1000))
    return written


def read(data: bytes, hang_up: bool) -> bytes:
    """All that a channel reads from these bytes, until nothing is left or it finds damage."""
    ours, theirs = socket.socketpair()
    damaged: list[int] = []
    got = b""
    with closing(CheckedChannel(ours, "a", lambda: damaged.append(1))) as receiver, theirs:
        theirs.sendall(data)
        if hang_up:
            theirs.shutdown(socket.SHUT_WR)
        room = memoryview(bytearray(1000))
        while n := receiver.recv_into(room):
            got += room[:n]
    return got


@pytest.mark.parametrize("at", range(0, 216, 3))
def test_a_changed_bit_anywhere_is_noticed_without_a_further_byte(at: int) -> None:
    """Also in the length: a reader that believed it would wait for bytes that nobody sends. The socket stays open meanwhile."""
    for bit in range(8):
        data = bytearray(records(bytes(range(200)))[0])
        data[at] ^= 1 << bit
        outcome = returns(lambda data=data: read(data, False), PATIENCE)  # type: ignore[misc]
        assert isinstance(outcome, ConnectionResetError), outcome


@pytest.mark.parametrize("order", ["aabc", "acb", "ac", "ba", "b"])
def test_records_that_are_doubled_moved_or_lost_are_noticed(order: str) -> None:
    written = dict(zip("abc", records(b"first", b"second", b"third"), strict=True))
    outcome = returns(lambda: read(b"".join(written[name] for name in order), False), PATIENCE)
    assert isinstance(outcome, ConnectionResetError) and "damaged" in str(outcome), outcome
    assert read(b"".join(written.values()), True) == b"firstsecondthird"


@pytest.mark.parametrize("records_between", [0, 2])
def test_missing_bytes_are_noticed_at_the_next_sign_of_life(records_between: int) -> None:
    """The rest of a record never comes, and what follows is too short to take its place."""
    first, *between, last = records(bytes(900), *[b"more"] * records_between, b"a sign of life")
    ours, theirs = socket.socketpair()
    with closing(CheckedChannel(ours, "a")) as receiver, theirs:
        theirs.sendall(first[:300] + first[700:] + b"".join(between))
        outcome: list[Any] = []
        reading = threading.Thread(target=lambda: outcome.append(returns(lambda: receiver.recv_into(memoryview(bytearray(1000))), PATIENCE)), daemon=True)
        reading.start()
        time.sleep(checksum.LATE_SECONDS * 1.2)
        theirs.sendall(last[:9])  # a network may cut it anywhere
        time.sleep(0.1)
        theirs.sendall(last[9:])
        reading.join(PATIENCE)
    assert isinstance(outcome[0], ConnectionResetError) and "damaged" in str(outcome[0]), outcome


def test_a_record_that_comes_slowly_is_no_damage() -> None:
    content = np.random.default_rng(2).bytes(950)
    (data,) = records(content)
    ours, theirs = socket.socketpair()

    def trickle() -> None:
        for start in range(0, len(data), 60):
            theirs.sendall(data[start : start + 60])
            time.sleep(checksum.LATE_SECONDS / 8)
        theirs.shutdown(socket.SHUT_WR)

    with closing(CheckedChannel(ours, "a")) as receiver, theirs:
        thread = threading.Thread(target=trickle)
        thread.start()
        got, room = bytearray(), memoryview(bytearray(1000))
        while n := receiver.recv_into(room):
            got += room[:n]
        thread.join()
    assert got == content


def test_bytes_keep_their_order_in_any_pieces() -> None:
    ours, theirs = socket.socketpair()
    whole = np.random.default_rng(1).bytes(300_000)
    pieces = [whole[:1], whole[1:70_000], b"", memoryview(whole)[70_000:270_000], whole[270_000:]]
    with closing(CheckedChannel(ours, "a")) as sender, closing(CheckedChannel(theirs, "b")) as receiver:
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

"""Handshakes by people who should not be let in: refused, counted, logged a few times at most, and no trouble for anybody else."""

from __future__ import annotations

import itertools
import json
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from strangers import EXAMPLE, TOKEN, receive

from echo_core import Client, SecurityError, Server
from echo_core.base.errors import EchoError, HandshakeRefused
from echo_core.wire.protocol import PROTOCOL_VERSION
from echo_net.channel import Channel
from echo_net.channel.listener import COMPLAINT_PAUSE
from echo_net.handshake import ClientHandshake
from echo_net.handshake.messages import MESSAGE
from echo_net.network import connection_rate
from echo_testing.processes import until

Serve = Callable[..., Server]
Strangers = Callable[[Server], Channel]

pytestmark = pytest.mark.needs("echo-samplers")


def message(kind: int, body: dict[str, Any], version: int = PROTOCOL_VERSION) -> bytes:
    text = json.dumps(body).encode()
    return MESSAGE.pack(b"ECHO", version, kind, 0, len(text)) + text


def turned_away(server: Server) -> int:
    (listener,) = server._listeners
    counts = listener.stats()
    return int(counts["refused"] + counts["protocol_errors"])


def logged_seldom(records: list[logging.LogRecord], seconds: float, pause: float) -> bool:
    """Whether each kind of warning was logged at most once in `pause` seconds: strangers must not fill the disk."""
    kinds = Counter(str(record.msg) for record in records if record.levelno >= logging.WARNING)
    return len(kinds) < 10 and all(count <= 1 + seconds / pause for count in kinds.values())


def works(server: Server, client: Client) -> None:
    """A peer that was accepted is served."""
    for number in range(4):
        client.send({"x": np.full(4, number, np.float32), "n": number})
    assert server.sample(timeout=20).batch["n"].tolist() == [0, 1, 2, 3]


def test_wrong_tokens(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve()
    with Client(server.address, EXAMPLE) as good:
        for _ in range(5):
            with pytest.raises(SecurityError, match="ECHO_TOKEN"):
                Client(server.address, EXAMPLE, token="somebody-elses-token-entirely", timeout=20)
        with pytest.raises(SecurityError, match="asks for a token"):
            Client(server.address, EXAMPLE, auth=False, timeout=20)
        works(server, good)
    until(lambda: turned_away(server) >= 5, "they are counted")
    assert 1 <= caplog.text.count("turned") <= 3, "the log is limited in its rate"
    assert TOKEN not in caplog.text and "somebody else" not in caplog.text


def test_a_replayed_handshake(serve: Serve, strangers: Strangers) -> None:
    """The messages of an accepted worker are sent again, byte for byte."""
    server = serve()
    recorded = []
    first = strangers(server)
    handshake = ClientHandshake(server.spec, TOKEN.encode(), "ab" * 16)
    reply = handshake.start()
    while not handshake.done:
        recorded.append(reply)
        first.send([reply])
        reply = handshake.receive(receive(first))
    assert len(recorded) == 3
    second = strangers(server)
    second.send([recorded[0]])
    receive(second)
    second.send([recorded[1]])
    assert b'"auth"' in receive(second)
    third = strangers(server)  # or everything at once
    third.send([b"".join(recorded)])
    heard = b""
    while part := receive(third):
        heard += part
    assert b'"auth"' in heard and b"WELCOME" not in heard and b'"spec"' not in heard
    until(lambda: turned_away(server) == 2, "both are refused")
    assert len(server.peers()) <= 1


def test_downgrades(serve: Serve, strangers: Strangers) -> None:
    """An older protocol, or a proof nobody asked for."""
    server = serve()
    hello = {"client": "0" * 32, "role": "worker", "nonce": "1" * 64, "session": "5" * 32, "silence": 30.0, "base": 0}
    for said, heard in [
        ([message(1, hello, version=1)], b'"version"'),
        ([message(1, hello), message(3, {"mac": ""})], b'"auth"'),
        ([message(1, hello), message(3, {"mac": None})], b""),
        ([message(1, hello | {"auth": "none"}), message(3, {"mac": "none"})], b'"auth"'),
        ([message(1, hello), message(5, {"spec": server.spec.to_json()})], b""),
    ]:
        stranger = strangers(server)
        answer = b""
        for part in said:
            with suppress(OSError):
                stranger.send([part])
        while part := receive(stranger):
            answer += part
        assert heard in answer and b'"spec"' not in answer
    until(lambda: turned_away(server) == 5, "all are refused")
    assert server.peers() == []
    # And a learner that pretends to know no tokens is not trusted by a worker that has one.
    with serve(auth=False) as open_to_all, pytest.raises(SecurityError, match="asks for none"):
        Client(open_to_all.address, EXAMPLE, timeout=20)


def test_roles_that_are_none(serve: Serve) -> None:
    server = serve(token="read:the-key-of-readers")
    with pytest.raises(SecurityError, match="needs a token for write"):
        Client(server.address, EXAMPLE, token="the-key-of-readers", timeout=20)
    with pytest.raises(HandshakeRefused, match="thief"):
        Client(server.address, EXAMPLE, token="the-key-of-readers", role="thief", timeout=20)


def test_a_workers_token_is_for_its_work_alone(serve: Serve) -> None:
    """It reads nothing of what is stored and changes nothing of it; weights are not published and learners not stopped over the network at all."""
    server = serve(token="write:the-key-of-workers-long-enough", queue=True)  # a stream has none of the operations
    with Client(server.address, EXAMPLE, token="the-key-of-workers-long-enough") as worker:
        works(server, worker)
        for name in ("sample", "item", "peek", "top", "priority_histogram", "tap", "update_priorities", "update_items", "ack", "delete"):
            with pytest.raises(SecurityError, match=f"'{name}' needs a token for (read|admin); yours is for write"):
                worker.request(name)
        for name in ("publish", "stop", "close"):
            with pytest.raises(EchoError, match=f"no operation '{name}'"):
                worker.request(name)
        works(server, worker)


@pytest.mark.parametrize("pace", ["nothing", "byte by byte"])
def test_slow_loris(serve: Serve, strangers: Strangers, pace: str) -> None:
    """Handshakes that never come to an end are ended, and keep nobody out meanwhile."""
    server = serve(handshake_timeout=1.0, max_pending=8)
    hello = message(1, {"client": "0" * 32, "role": "worker", "nonce": "1" * 64, "session": "5" * 32, "silence": 30.0, "base": 0})
    with Client(server.address, EXAMPLE) as good:
        slow = [strangers(server) for _ in range(12)]
        over = threading.Event()

        def trickle(channel: Channel) -> None:
            with suppress(OSError):
                channel.send([hello[:1]])
                for byte in hello[1:-1]:
                    if over.wait(0.03):
                        return
                    if pace != "nothing":
                        channel.send([bytes([byte])])

        threads = [threading.Thread(target=trickle, args=(channel,)) for channel in slow]
        for thread in threads:
            thread.start()
        try:
            with Client(server.address, EXAMPLE, timeout=20) as quick:
                works(server, quick)
            works(server, good)
            until(lambda: turned_away(server) >= 8, "those in their handshake were ended")
        finally:
            over.set()
            for thread in threads:
                thread.join()


def test_strangers_take_no_clients_places(serve: Serve, strangers: Strangers) -> None:
    server = serve(handshake_timeout=20.0, max_connections=2)
    silent = [strangers(server) for _ in range(8)]
    with Client(server.address, EXAMPLE, timeout=20) as first, Client(server.address, EXAMPLE, timeout=20) as second:
        works(server, first)
        works(server, second)
        with pytest.raises(EchoError, match="serves 2 clients already"):
            Client(server.address, EXAMPLE, timeout=2)
    assert len(silent) == 8


def test_many_connection_attempts(
    serve: Serve, scheme: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """10 000 plain connections, most of which say something wrong, and all of which are let in; a worker is served all the time."""
    began = time.monotonic()
    server = serve(handshake_timeout=2.0, max_connection_rate=0)
    place, served = server.address.endpoint, threading.Event()
    said = [b"", b"ECHO" + bytes((PROTOCOL_VERSION, 1, 0, 0)), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0\1\0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]

    def storm(first: int) -> None:
        for number in itertools.count(first, 4):
            if number >= 10_000 and served.is_set():
                return
            with suppress(OSError), socket.create_connection(place, timeout=20) as sock:
                sock.send(said[number % len(said)])

    with Client(server.address, EXAMPLE) as good:
        threads = [threading.Thread(target=storm, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):  # in the middle of it, however quick it is
                works(server, good)
        finally:
            served.set()
        while any(thread.is_alive() for thread in threads):
            works(server, good)
        for thread in threads:
            thread.join()
        with Client(server.address, EXAMPLE, timeout=30) as late:
            works(server, late)
    if scheme != "grpc":  # of connections without a call grpcio tells nobody; with TLS they are found by what is missing
        until(lambda: turned_away(server) >= 6000, "they are counted, but for those who said nothing or half a word")
    assert logged_seldom(caplog.records, time.monotonic() - began, COMPLAINT_PAUSE)
    assert len(capfd.readouterr().err.splitlines()) < 60, "nor do libraries that write past Python's log"


def test_a_flood_waits_outside(serve: Serve, scheme: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 000 connection attempts, as quickly as one can: the learner sees few of them, its worker is served, and the next comes in."""
    monkeypatch.setattr(connection_rate, "BURST_SECONDS", 1.0)
    began = time.monotonic()
    server = serve(max_connection_rate=100.0)
    place = server.address.endpoint
    with Client(server.address, EXAMPLE) as good:
        let_in = 0
        for number in range(10_000):
            with suppress(OSError), socket.create_connection(place, timeout=0.0005) as sock:
                let_in += 1
                sock.send(b"GET / HTTP/1.1\r\n\r\n")
            if number % 500 == 0:
                works(server, good)
        with Client(server.address, EXAMPLE, timeout=30) as late:
            works(server, late)
        works(server, good)
    assert let_in < 7500, "a tenth of a second's worth is let in before it is noticed, and a hundred a second from then on"
    assert server.stats()[f"transport/{scheme}/held_off_total"] > 1000
    lines = [record for record in caplog.records if "more than 100 new connections a second" in record.getMessage()]
    assert lines and logged_seldom(lines, time.monotonic() - began, connection_rate.COMPLAINT_PAUSE)


def test_a_stranger_cannot_make_the_learner_allocate(serve: Serve, strangers: Strangers) -> None:
    """Announced sizes are refused by their header; nothing is kept of what cannot come."""
    server = serve()
    for announced in (4097, 1 << 20, 0xFFFFFFFF):
        stranger = strangers(server)
        with suppress(OSError):
            stranger.send([MESSAGE.pack(b"ECHO", PROTOCOL_VERSION, 1, 0, announced) + b" " * 1000])
        assert receive(stranger) == b""
    until(lambda: turned_away(server) == 3, "all are refused")


def test_secrets_are_nowhere_to_be_seen(serve: Serve, scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    secret = "a-secret-nobody-may-read-7319"
    caplog.set_level(logging.DEBUG)
    server = serve(token=secret)
    texts = [repr(server), str(server.stats()), repr(server._transports), repr(server._transports[0].options)]
    with Client(server.address, EXAMPLE, token=secret) as client:
        client.send({"x": np.zeros(4, np.float32), "n": 0})
        texts += [repr(client), str(client.stats()), repr(client._connection), repr(server.peers())]
        texts.append(repr(getattr(client._connection, "options", "")))
    for wrong in (secret + "abc.", b"x" * 40):
        try:
            Client(server.address, EXAMPLE, token=wrong[:-3], timeout=20)
        except EchoError as error:
            texts += [str(error), repr(error), repr(error.__cause__), repr(error.__context__)]
    assert "7319" not in " ".join([*texts, caplog.text])
    with pytest.raises(Exception, match="tokn") as caught:
        type(server._transports[0])(tokn=secret)
    assert "7319" not in str(caught.value)



"""Peers that are no workers of this learner are told so if possible, and never disturb the others."""

from __future__ import annotations

import json
import logging
import random
import re
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rig.ledger import Consumer
from rig.processes import Child
from rig.raw import RawWorker
from rig.workers import flood

from echo_core import Client, SecurityError, Server, Spec, SpecError
from echo_core.wire.protocol import PROTOCOL_VERSION, pack_header
from echo_testing.processes import until
from echo_testing.samples import example


def message(kind: int, body: Any, version: int = PROTOCOL_VERSION, length: int | None = None) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (
        struct.pack("<4sBBHI", b"ECHO", version, kind, 0, len(data) if length is None else length)
        + data
    )


HELLO = {
    "client": "0" * 32, "role": "worker", "nonce": "1" * 64, "base": 0, "session": "5" * 32, "silence": 30.0,
    "name": "stranger", "pid": 1, "host": "h", "version": "0",
}  # fmt: skip
CHANCE = random.Random(7)
STRANGE = {
    "a browser": b"GET / HTTP/1.1\r\nHost: learner\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(160),
    "random bytes": CHANCE.randbytes(65536),
    "zeros": bytes(1 << 20),
    "protocol 1": message(1, HELLO, version=1),
    "protocol 255": message(1, HELLO, version=255),
    "unknown message": message(99, {}),
    "no HELLO first": message(3, {"mac": "0" * 64}),
    "HELLO twice": message(1, HELLO) * 2,
    "announces 4 GiB": message(1, b"{", length=0xFFFFFFFF),
    "announces more than 4 KiB": message(1, b"{", length=4097),
    "no JSON": message(1, b"\xff\xfe{"),
    "JSON of another kind": message(1, [HELLO]),
    "deep JSON": message(1, b"[" * 4000),
    "nothing said": message(1, {}),
    "no number": message(1, HELLO | {"base": "0"}),
    "below zero": message(1, HELLO | {"base": -1}),
    "beyond all numbers": message(1, HELLO | {"base": 1 << 70}),
    "no client": message(1, HELLO | {"client": "g" * 32}),
    "another role": message(1, HELLO | {"role": "thief"}),
    "no proof": message(1, HELLO) + message(3, {"mac": ""}),
    "wrong proof": message(1, HELLO) + message(3, {"mac": "0" * 64}),
    "data without a handshake": pack_header(1, count=1, seq=1, length=64) + bytes(64),
}


@pytest.fixture
def steady(serve: Callable[..., Server], start: Callable[..., Child]) -> Callable[..., Any]:
    def steady(**transport: Any) -> tuple[Server, Child]:
        server = serve(batch_size=16, transport=transport)
        child = start(flood, str(server.address), 0)
        assert child.hear() == "ready"
        return server, child

    return steady


def turned_away(server: Server) -> int:
    counts = server.stats()
    return int(counts["transport/tcp/refused"] + counts["transport/tcp/protocol_errors"])


def hangs_up(sock: socket.socket) -> bytes:
    """What the other end says until it hangs up."""
    sock.settimeout(20)
    said = b""
    try:
        while data := sock.recv(65536):
            said += data
    except ConnectionError:
        pass
    return said


def test_strange_handshakes(steady: Callable[..., Any]) -> None:
    server, child = steady()
    with Consumer(server) as consumer:
        for what, data in STRANGE.items():
            for pieces in ([data], [data[:3], data[3:14], data[14:]]):
                with socket.create_connection(("127.0.0.1", server.port)) as sock:
                    try:
                        for piece in pieces:
                            sock.sendall(piece)
                    except ConnectionError:
                        continue  # hung up already
                    said = hangs_up(sock)
                    if what.startswith("wrong proof"):
                        assert b"auth" in said and b"ECHO_TOKEN" in said
        assert turned_away(server) == 2 * len(STRANGE)
        assert len(server.peers()) == 1
        sent = child.ask("stop")["acknowledged"]
        consumer.finish().check({0: sent})
        child.end()


def test_slow_handshakes_end_and_keep_nobody_out(steady: Callable[..., Any]) -> None:
    server, child = steady(handshake_timeout=1.0)
    hello = message(1, HELLO)
    with Consumer(server) as consumer:
        slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        try:
            alive = set(slow)
            sent, end = 0, time.monotonic() + 20
            while alive:
                assert time.monotonic() < end, f"{len(alive)} slow handshakes are still under way"
                for sock in list(alive):
                    try:
                        sock.send(hello[sent : sent + 1], socket.MSG_DONTWAIT)
                        if not sock.recv(4096, socket.MSG_DONTWAIT):
                            alive.remove(sock)
                    except BlockingIOError:
                        pass
                    except ConnectionError:
                        alive.remove(sock)
                sent = min(sent + 1, len(hello) - 2)
                with RawWorker(server):
                    pass  # a quick one gets in meanwhile
                time.sleep(0.02)
        finally:
            for sock in slow:
                sock.close()
        sent = child.ask("stop")["acknowledged"]
        consumer.finish().check({0: sent})
        child.end()


def test_a_thousand_connections_that_say_nothing(steady: Callable[..., Any]) -> None:
    server, child = steady(handshake_timeout=1.0)
    with Consumer(server) as consumer:
        silent = []
        try:
            for _ in range(1000):
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", server.port))
                silent.append(sock)
            with Client(server.address, example()) as client:  # behind all of them
                client.wait()
            selector = selectors.DefaultSelector()
            for sock in silent:
                selector.register(sock, selectors.EVENT_READ)
            end = time.monotonic() + 30
            while selector.get_map():
                assert time.monotonic() < end, f"{len(selector.get_map())} are still connected"
                for key, _ in selector.select(1):
                    selector.unregister(key.fileobj)
            selector.close()
        finally:
            for sock in silent:
                sock.close()
        assert turned_away(server) == 1000
        sent = child.ask("stop")["acknowledged"]
        consumer.finish().check({0: sent})
        child.end()


OTHER_SPECS: dict[str, tuple[Any, str]] = {
    "dtype": ({"obs": np.zeros(4, np.int32), "act": np.zeros((2, 3), np.int16)}, "obs"),
    "key": ({"obz": np.zeros(4, np.float32), "act": np.zeros((2, 3), np.int16)}, "obz"),
    "shape": ({"obs": np.zeros(4, np.float32), "act": np.zeros((3, 2), np.int16)}, "act"),
    "one more": (
        {"obs": np.zeros(4, np.float32), "act": np.zeros((2, 3), np.int16), "x": np.zeros(0)},
        "x",
    ),
    "one less": ({"obs": np.zeros(7, np.float32)}, "act|obs"),
}
OURS = {"obs": np.zeros(4, np.float32), "act": np.zeros((2, 3), np.int16)}


@pytest.mark.parametrize("what", OTHER_SPECS)
def test_another_spec_of_as_many_bytes(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """Refused when connecting, at both ends, and when sending: by leaf."""
    other, leaf = OTHER_SPECS[what]
    assert Spec.from_example(other).sample_bytes == Spec.from_example(OURS).sample_bytes
    with Server(OURS, 1, {"type": "tcp", "port": 0}) as server:
        with pytest.raises(SpecError, match=leaf):
            Client(server.address, other, name="confused", timeout=20)
        with caplog.at_level(logging.WARNING):
            until(lambda: re.search(f"confused.*{leaf}", caplog.text), "the learner's log names it")
        with Client(server.address, OURS) as client:
            with pytest.raises(SpecError, match=leaf):
                client.send(other)
            with pytest.raises(SpecError):
                client.send_batch({key: np.stack([leaf] * 2) for key, leaf in other.items()})
            with pytest.raises(SpecError, match=leaf):
                server.submit(other)
            client.send(OURS)  # and goes on
            client.wait()
        assert server.sample(timeout=20).batch["act"].shape == (1, 2, 3)
        assert server.stats()["store/samples_inserted_total"] == 1


def test_the_wrong_token_at_either_end(serve: Callable[..., Server]) -> None:
    server = serve(token="the-learners-own-secret")
    for token in ("the-secret-of-somebody-else", None):
        with pytest.raises(SecurityError, match="ECHO_TOKEN"):
            Client(server.address, example(), token=token, timeout=20)
    with pytest.raises(SecurityError, match="ECHO_TOKEN"):
        Client(server.address, example(), auth=False, timeout=20)
    with Client(server.address, example(), token="the-learners-own-secret") as client:
        client.wait()
    open_to_all = serve(transport={"auth": False})
    with pytest.raises(SecurityError, match="asks for none"):
        Client(open_to_all.address, example(), token="a-secret-to-be-kept", timeout=20)
    with Client(open_to_all.address, example(), auth=False) as client:
        client.wait()

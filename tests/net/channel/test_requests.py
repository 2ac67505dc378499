"""Requests and their answers, and pings."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from local_net import connect, net, raw, serve

from echo_core.base.errors import ConnectionClosedError, EchoError, EchoTimeoutError
from echo_core.server.server import Server
from echo_core.wire.blobs import MAX_BYTES
from echo_core.wire.later import Later
from echo_core.wire.peer import Peer
from echo_core.wire.protocol import REPLY, Kind, frame, pack_request
from echo_testing.processes import returns, until
from echo_testing.samples import sample, stacked

pytestmark = pytest.mark.needs("echo-samplers")


def operation(server: Server, name: str, function: Any) -> None:
    """Give this one server another operation for its workers to request."""
    server.serve(f"test/{name}", function)


def test_requests_of_workers() -> None:
    with serve() as server, connect() as connection:
        body, blob = connection.request("ping", {}, b"x" * 1_000_000)
        assert blob == b"x" * 1_000_000 and "time" in body
        assert connection.request("stats", {})[0]["store/batch_size"] == server.batch_size
        with pytest.raises(EchoError, match="'nonsense'"):
            connection.request("nonsense", {})
        with pytest.raises(ValueError, match="at most"):
            connection.request("ping", {}, bytes(2 << 20))
        operation(server, "fail", lambda server, peer, body, blob: {}["x"])
        with pytest.raises(EchoError, match="KeyError: 'x'"):
            connection.request("test/fail", {})
        operation(server, "huge", lambda server, peer, body, blob: ({}, bytes(2 << 20)))
        first, piece = connection.request("test/huge", {})
        assert first["bytes"] > 2 << 20 and len(piece) == MAX_BYTES, "the first piece; Client.request fetches the others"


def test_requests_are_carried_out_after_the_samples_before_them() -> None:
    with serve(batch_size=100) as server, connect() as connection:
        seen = []
        operation(server, "count", lambda server, *_: ({"n": server.stats()["store/samples_inserted_total"]}, b""))
        for i in range(20):
            connection.send(sample(0, i))
            connection.flush()
            seen.append(connection.request("test/count", {})[0]["n"])
        assert seen == list(range(1, 21))


def test_a_request_without_an_answer() -> None:
    release = threading.Event()
    with serve() as server, connect() as connection:
        operation(server, "slow", lambda *_: (release.wait(10), ({}, b""))[1])
        with pytest.raises(EchoTimeoutError, match="request 'test/slow' waits for an answer of the learner"):
            connection.request("test/slow", {}, timeout=0.05)
        outcome: list[Any] = []
        thread = threading.Thread(target=lambda: outcome.append(returns(lambda: connection.request("test/slow", {}))))
        thread.start()
        time.sleep(0.1)
        net.cut()
        thread.join()
        assert isinstance(outcome[0], ConnectionClosedError) and "may have been carried out" in str(outcome[0])
        release.set()
        assert connection.request("ping", {})


def test_pings_are_answered_and_an_idle_link_shows_life() -> None:
    with serve(), raw() as worker:
        worker.sock.sendall(frame(Kind.PING, seq=77))
        answer = worker.read(Kind.PING)
        assert (answer.seq, answer.flags) == (77, REPLY)
    with serve(silence=0.15), raw() as worker:
        assert worker.read(Kind.PING).flags == REPLY  # a sign of life, which needs no answer


@pytest.mark.parametrize("asked", ["pings", "requests"])
def test_who_asks_and_never_reads_is_not_read_either(asked: str) -> None:
    """Its answers would pile up in the learner until that is killed for its memory."""
    payload = b"" if asked == "pings" else pack_request("ping", {}, bytes(1_000_000))
    most = 64 * len(payload) or 1 << 20
    with serve(batch_size=2) as server, raw() as deaf, connect() as other:
        link = next(client.link for client in server._listeners[0].serving() if client.peer.name == "raw")  # type: ignore[attr-defined]
        sent, rest = 0, memoryview(b"")
        deaf.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            while sent * max(24, len(payload)) < most:
                rest = memoryview(frame(Kind.CONTROL, payload, seq=sent + 1) if payload else frame(Kind.PING, seq=sent + 1))
                while rest:
                    rest = rest[deaf.sock.send(rest) :]
                sent += 1
        assert len(link._posted) < 20 and sum(map(len, link._posted)) < 4 << 20
        other.send_batch(stacked(1, 0, 2))
        other.wait()
        assert server.sample(10).batch["number"].tolist() == [0, 1]
        # It is served on as soon as it reads, the frame that it was in the middle of, too.
        deaf.sock.settimeout(10)
        sender = threading.Thread(target=deaf.sock.sendall, args=(rest,))
        sender.start()
        for number in range(1, sent + 2):
            assert deaf.read(Kind.CONTROL if payload else Kind.PING).seq == number
        sender.join()
        deaf.send(1, 2)
        assert server.sample(10).batch["number"].tolist() == [0, 1]


def test_who_asks_and_never_reads_keeps_nobody_from_closing() -> None:
    with serve() as server, raw() as deaf:
        deaf.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            for _ in range(64):
                deaf.sock.sendall(frame(Kind.CONTROL, pack_request("ping", {}, bytes(1_000_000)), seq=1))
        returns(lambda: server.close(0.2))
        assert server.peers() == []


def test_who_does_not_read_late_answers_is_cut_off() -> None:
    waiting: list[Later] = []

    def later(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Later:
        waiting.append(Later(peer))
        return waiting[-1]

    with serve(client_memory=32 << 20) as server, connect() as other, raw() as deaf:
        server.serve("test/later", later)
        for number in range(1, 41):
            deaf.sock.sendall(frame(Kind.CONTROL, pack_request("test/later", {}), seq=number))
        until(lambda: len(waiting) == 40, "all are parked")
        for one in waiting:
            one({}, bytes(1_000_000))
        until(lambda: [peer.name for peer in server.peers()] != [] and all(peer.name != "raw" for peer in server.peers()), "it is cut off")
        assert server.stats()["clients/cut_off_total"] == 1
        pending = other.ask("test/later", {})
        until(lambda: len(waiting) == 41, "the other is parked")
        assert waiting[-1]({}, bytes(1_000_000))
        assert len(pending(10)[1]) == 1_000_000
        until(lambda: server.stats()["clients/held_bytes"] == 0, "what was read is held no more")

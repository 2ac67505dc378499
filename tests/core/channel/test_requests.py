"""Requests and their answers, both ways, and pings."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from local_net import connect, net, raw, serve

from echo_core.channel import link as link_module
from echo_core.errors import ConnectionClosedError, EchoError, EchoTimeoutError
from echo_core.server import Server
from echo_core.testing.processes import returns, until
from echo_core.testing.samples import sample
from echo_core.wire import REPLY, Kind, frame

pytestmark = pytest.mark.needs("echo-samplers")


def operation(server: Server, name: str, function: Any) -> None:
    """Give this one server another operation for its workers to request."""
    server.__dict__["_operations"] = {**server._operations, name: function}


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
            connection.request("fail", {})
        operation(server, "huge", lambda server, peer, body, blob: ({}, bytes(2 << 20)))
        with pytest.raises(EchoError, match="at most 1048576"):
            connection.request("huge", {})


def test_requests_are_carried_out_after_the_samples_before_them() -> None:
    with serve(batch_size=100) as server, connect() as connection:
        seen = []
        operation(server, "count", lambda server, *_: ({"n": server.stats()["store/samples_inserted_total"]}, b""))
        for i in range(20):
            connection.send(sample(0, i))
            connection.flush()
            seen.append(connection.request("count", {})[0]["n"])
        assert seen == list(range(1, 21))


def test_a_request_without_an_answer() -> None:
    release = threading.Event()
    with serve() as server, connect() as connection:
        operation(server, "slow", lambda *_: (release.wait(10), ({}, b""))[1])
        with pytest.raises(EchoTimeoutError, match="request 'slow' waits for an answer of the learner"):
            connection.request("slow", {}, timeout=0.05)
        outcome: list[Any] = []
        thread = threading.Thread(target=lambda: outcome.append(returns(lambda: connection.request("slow", {}))))
        thread.start()
        time.sleep(0.1)
        net.cut()
        thread.join()
        assert isinstance(outcome[0], ConnectionClosedError) and "may have been carried out" in str(outcome[0])
        release.set()
        assert connection.request("ping", {})


def test_requests_of_the_learner() -> None:
    with serve() as server, connect() as connection:
        listener = server._listeners[0]
        peer = server.peers()[0]
        with pytest.raises(EchoError, match="this worker answers no requests"):
            listener.request(peer, "hello", {})
        connection.on_request = lambda op, body, blob: ({"op": op, **body}, blob + b"!")
        assert listener.request(peer, "hello", {"a": 1}, b"blob") == ({"op": "hello", "a": 1}, b"blob!")
        connection.close()
        until(lambda: not server.peers(), "it has left")
        with pytest.raises(ConnectionClosedError, match="worker w is not connected"):
            listener.request(peer, "hello", {})


def test_pings_are_answered_and_an_idle_link_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(), raw() as worker:
        worker.sock.sendall(frame(Kind.PING, seq=77))
        answer = worker.read(Kind.PING)
        assert (answer.seq, answer.flags) == (77, REPLY)
    monkeypatch.setattr(link_module, "PROBE_AFTER", 0.05)
    with serve(), raw() as worker:
        assert worker.read(Kind.PING).flags == 0

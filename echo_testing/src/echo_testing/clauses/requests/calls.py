"""Clauses about calls of the server to its clients (`Server.ask`, `Client.serve`)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from echo_core.base.errors import ClosedError, ConfigError, ConnectionClosedError, EchoError, EchoTimeoutError
from echo_core.client.client import Client
from echo_core.server.server import Server
from echo_core.wire.peer import Peer

from ... import workers
from ...processes import returns, stop, until
from ...rig import PATIENCE, Rig, drain, hear
from ...samples import stacked
from .. import carrier

Needs = Callable[[str], None]


def _peer(server: Server, client: Client | str) -> Peer:
    name = client if isinstance(client, str) else client._pickled[3]["name"]
    return next(peer for peer in server.peers() if peer.name == name)


def _background(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(returns(call, PATIENCE)), daemon=True)
    thread.start()
    return thread, outcome


class CallClauses:
    def test_a_server_calls_its_clients(self, rig: Rig) -> None:
        server = rig.server()
        clients = [rig.client(server) for _ in range(3)]
        for number, client in enumerate(clients):
            client.serve("kit/echo", lambda body, blob, number=number: ({"number": number, **body}, blob[::-1]))  # type: ignore[misc]
        for number, client in enumerate(clients):
            for n in range(5):
                assert server.ask(_peer(server, client), "kit/echo", {"n": n}, b"abc", PATIENCE) == ({"number": number, "n": n}, b"cba")
        clients[0].send_batch(stacked(1, 0, 8))
        drain(server, 8).check({1: 8})
        server.publish({"w": np.ones(3)})
        assert clients[0].weights().version == 1
        with pytest.raises(ConfigError, match="serves 'kit/echo' already"):
            clients[0].serve("kit/echo", lambda body, blob: (body, blob))

    @carrier
    def test_calls_and_their_results_may_be_large(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)
        large = bytes(range(256)) * 12_000
        asking, outcome = _background(lambda: server.ask(_peer(server, client), "kit/echo", {}, large, PATIENCE))  # before it is served
        client.serve("kit/echo", lambda body, blob: (body, [blob, b"end"]))
        asking.join(PATIENCE)
        assert outcome == [({}, large + b"end")]
        assert server.ask(_peer(server, client), "kit/echo", {}, large, PATIENCE)[1] == large + b"end"

    def test_an_error_of_a_handler_is_raised_at_the_server(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)

        def fails(body: dict[str, Any], blob: bytes) -> Any:
            if body["how"] == "echo":
                raise EchoError("no policy yet")
            return {"x": {}["x"]} if body["how"] == "key" else None

        client.serve("kit/fails", fails)
        peer = _peer(server, client)
        for how, text in (("echo", "no policy yet"), ("key", "KeyError: 'x'"), ("none", "must return")):
            with pytest.raises(EchoError, match=text):
                server.ask(peer, "kit/fails", {"how": how}, timeout=PATIENCE)
        with pytest.raises((TypeError, ValueError)):
            server.ask(peer, "kit/fails", {"how": object()}, timeout=PATIENCE)
        with pytest.raises(EchoError, match="no policy yet"):
            server.ask(peer, "kit/fails", {"how": "echo"}, timeout=PATIENCE)

    def test_a_long_call_delays_only_calls_of_its_operation(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)
        go_on, running = threading.Event(), threading.Semaphore(0)

        def task(body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
            running.release()
            go_on.wait(PATIENCE)
            return body, b""

        client.serve("kit/task", task, concurrency=2)
        client.serve("kit/cancel", lambda body, blob: (go_on.set() or {}, b""))  # type: ignore[func-returns-value]
        peer = _peer(server, client)
        asked = [_background(lambda n=n: server.ask(peer, "kit/task", {"n": n})) for n in range(3)]  # type: ignore[misc]
        for _ in range(2):
            assert running.acquire(timeout=PATIENCE)
        assert not running.acquire(timeout=0.2), "two threads carry out two calls"
        with pytest.raises(EchoTimeoutError, match="did not ask for the call"):
            server.ask(peer, "kit/task", {"n": 9}, timeout=0.05)
        with pytest.raises(EchoTimeoutError, match="does not serve 'kit/nothing'"):
            server.ask(peer, "kit/nothing", timeout=0.05)
        server.ask(peer, "kit/cancel", timeout=PATIENCE)
        for n, (thread, outcome) in enumerate(asked):
            thread.join(PATIENCE)
            assert outcome == [({"n": n}, b"")]
        assert running.acquire(timeout=PATIENCE) and not running.acquire(timeout=0.1), "a call that nobody waits for is not carried out"

    def test_a_call_that_is_too_late_changes_no_other(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)
        go_on = threading.Event()

        def slow(body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
            if body["n"] == 0:
                go_on.wait(PATIENCE)
            return body, b""

        client.serve("kit/slow", slow)
        peer = _peer(server, client)
        server.ask(peer, "kit/slow", {"n": 1}, timeout=PATIENCE)
        with pytest.raises(EchoTimeoutError, match="may still carry it out"):
            server.ask(peer, "kit/slow", {"n": 0}, timeout=0.05)
        go_on.set()
        assert server.ask(peer, "kit/slow", {"n": 2}, timeout=PATIENCE)[0] == {"n": 2}

    @carrier
    def test_a_call_over_a_lost_link_fails_at_once_and_is_never_made_again(self, rig: Rig, needs: Needs) -> None:
        needs("severable")
        server = rig.server()
        client = rig.client(server)
        go_on, done = threading.Event(), []

        def task(body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
            done.append(body["n"])
            if body["n"] == 0:
                go_on.wait(PATIENCE)
            return body, b""

        client.serve("kit/task", task)
        peer = _peer(server, client)
        asked = [_background(lambda: server.ask(peer, "kit/task", {"n": 0}))]
        until(lambda: done, "it has begun", PATIENCE)
        asked.append(_background(lambda: server.ask(peer, "kit/task", {"n": 1})))
        rig.contract.sever(server, client, reset=True)
        for thread, outcome in asked:
            thread.join(PATIENCE)
            assert isinstance(outcome[0], ConnectionClosedError), outcome
        until(lambda: server.peers() and server.peers()[0] is not peer, "it is back", PATIENCE)
        with pytest.raises(ConnectionClosedError, match="not connected any more"):
            server.ask(peer, "kit/task", {"n": 2}, timeout=PATIENCE)
        go_on.set()
        assert server.ask(_peer(server, client), "kit/task", {"n": 3}, timeout=PATIENCE)[0] == {"n": 3}
        assert done == [0, 3]

    def test_calls_end_with_the_client_and_with_the_server(self, rig: Rig) -> None:
        server = rig.server()
        leaving, staying = rig.client(server), rig.client(server)
        go_on, began = threading.Event(), threading.Semaphore(0)

        def task(body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
            began.release()
            go_on.wait(PATIENCE)
            return body, b""

        for client in (leaving, staying):
            client.serve("kit/task", task)
        peers = [_peer(server, client) for client in (leaving, staying)]
        asked = [_background(lambda peer=peer: server.ask(peer, "kit/task")) for peer in peers]  # type: ignore[misc]
        for _ in range(2):
            assert began.acquire(timeout=PATIENCE)
        leaving.close()
        asked[0][0].join(PATIENCE)
        assert isinstance(asked[0][1][0], ConnectionClosedError), asked[0][1]
        with pytest.raises(ClosedError):
            leaving.serve("kit/more", lambda body, blob: (body, blob))
        server.close()
        asked[1][0].join(PATIENCE)
        assert type(asked[1][1][0]) is ClosedError, asked[1][1]
        go_on.set()

    def test_a_killed_or_stopped_worker_fails_its_calls_only(self, rig: Rig, needs: Needs) -> None:
        needs("processes")
        server = rig.server()
        here = rig.client(server)
        here.serve("kit/pid", lambda body, blob: ({"pid": os.getpid()}, blob))
        hearing, saying = rig.pipe()
        process = rig.spawn(workers.serve, str(server.address), saying, self.connect_options)  # type: ignore[attr-defined]
        assert hear(hearing) == "ready"
        peer = _peer(server, "serving")
        assert process.pid is not None
        assert server.ask(peer, "kit/pid", timeout=PATIENCE)[0] == {"pid": process.pid}
        asking, outcome = _background(lambda: server.ask(peer, "kit/sleep"))
        assert hear(hearing) == "asleep"
        stop(process.pid)
        with pytest.raises(EchoTimeoutError):
            server.ask(peer, "kit/pid", timeout=0.2)
        assert server.ask(_peer(server, here), "kit/pid", timeout=PATIENCE)[0] == {"pid": os.getpid()}
        os.kill(process.pid, signal.SIGCONT)
        assert server.ask(peer, "kit/pid", blob=b"again", timeout=PATIENCE) == ({"pid": process.pid}, b"again")
        process.kill()
        asking.join(PATIENCE)
        assert isinstance(outcome[0], ConnectionClosedError), outcome
        assert server.ask(_peer(server, here), "kit/pid", timeout=PATIENCE)[0] == {"pid": os.getpid()}

    def test_a_client_serves_the_next_server_too(self, rig: Rig, needs: Needs) -> None:
        needs("restarts")
        address = rig.place()
        server = rig.server(at=address)
        client = rig.client(server)
        go_on = threading.Event()

        def task(body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
            if body["n"] == 0:
                go_on.wait(PATIENCE)
            return body, b""

        client.serve("kit/task", task, concurrency=2)
        asking, _ = _background(lambda: server.ask(_peer(server, client), "kit/task", {"n": 0}))
        until(lambda: any(one.given for one in server._calls._clients.values()), "it is called", PATIENCE)
        until(lambda: server.stats()["clients/parked"] == 1, "its other thread waits for a call", PATIENCE)
        server.close(restarting=True)
        asking.join(PATIENCE)
        again = rig.server(at=address)
        until(lambda: again.peers(), "it is back", PATIENCE)
        peer = _peer(again, client)
        assert again.ask(peer, "kit/task", {"n": 1}, timeout=PATIENCE)[0] == {"n": 1}, "the thread that has nothing to do serves the next server"
        go_on.set()  # the result of the other server's call comes now
        assert again.ask(peer, "kit/task", {"n": 2}, timeout=PATIENCE)[0] == {"n": 2}

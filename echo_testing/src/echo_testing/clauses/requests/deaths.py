"""Clauses about an end that dies, or is stopped, while a request or a call is under way: kill -9 and SIGSTOP of each side in each state."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from echo_core.base.errors import ClosedError, ConnectionClosedError, EchoTimeoutError
from echo_core.server.server import Server
from echo_core.wire.later import Later
from echo_core.wire.peer import Peer

from ... import workers
from ...processes import returns, stop, until
from ...rig import PATIENCE, Rig, drain, hear
from ...rig_roles import asking_roles
from ...samples import stacked
from .. import carrier

Needs = Callable[[str], None]

LARGE = workers.LARGE  # its first bytes have arrived long before its last
MOMENTS = (0.0, 0.003, 0.01, 0.03)  # seconds after the beginning of a large answer


def _go_on(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGCONT)


def _whole_or_lost(outcome: Any) -> None:
    """A large answer came as it was given, or its connection was lost."""
    assert isinstance(outcome, ConnectionClosedError) or bytes(outcome[1]) == LARGE, outcome


def _call(server: Server, name: str) -> None:
    """The client `name` answers a call."""
    peer = until(lambda: next((peer for peer in server.peers() if peer.name == name), None), f"{name} is connected", PATIENCE)
    assert server.ask(peer, "kit/here", {"n": 3}, b"x", PATIENCE) == ({"n": 3}, b"x")


class DeathClauses:
    @asking_roles
    @pytest.mark.parametrize("end", ["killed", "stopped"])
    def test_a_learner_that_dies_while_it_answers_is_noticed(self, rig: Rig, needs: Needs, end: str, role: str) -> None:
        needs("processes")
        learner, telling, hearing, address = self._learner(rig)
        client = rig.client(address, role=role)
        pending = client._requests.ask("kit/when-told", {"n": 1})
        assert hear(hearing) == "answering"
        if end == "killed":
            learner.kill()
            assert isinstance(returns(lambda: pending(PATIENCE), PATIENCE), ConnectionClosedError)
            return
        stop(learner.pid)
        with pytest.raises(EchoTimeoutError):
            pending(0.2)
        again = client._requests.ask("kit/large", {"n": 2})
        _go_on(learner)
        telling.send("go")
        body, blob = again(PATIENCE)
        assert (body, bytes(blob)) == ({"n": 2}, LARGE)
        assert client.request("kit/large", {"n": 2}, timeout=PATIENCE) == ({"n": 2}, LARGE), "the connection has outlived it"

    @carrier
    @asking_roles
    def test_a_large_answer_of_a_learner_that_is_killed_is_never_torn(self, rig: Rig, needs: Needs, role: str) -> None:
        needs("processes")
        for moment in MOMENTS:
            learner, _, hearing, address = self._learner(rig)
            client = rig.client(address, role=role)
            pending = client._requests.ask("kit/large", {"n": 1})
            assert hear(hearing) == "answering"
            rig.pause(moment)
            learner.kill()
            _whole_or_lost(returns(lambda pending=pending: pending(PATIENCE / 2), PATIENCE))  # type: ignore[misc]

    @pytest.mark.parametrize("end", ["killed", "stopped"])
    def test_a_learner_that_dies_while_it_asks_frees_its_worker(self, rig: Rig, needs: Needs, end: str) -> None:
        needs("processes")
        needs("restarts")
        address = rig.place()
        learner, telling, hearing, _ = self._learner(rig, str(address))
        client = rig.client(address)
        began, go_on, done = threading.Event(), threading.Event(), []

        def task(body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
            done.append(body["n"])
            began.set()
            go_on.wait(PATIENCE)
            return body, LARGE

        client.serve("kit/task", task)
        telling.send("ask")
        assert began.wait(PATIENCE)
        if end == "stopped":
            stop(learner.pid)
            go_on.set()
            rig.pause(0.1)
            _go_on(learner)
            assert hear(hearing) == {"n": 1, "whole": True}
            assert done == [1]
            return
        learner.kill()
        learner.join(PATIENCE)
        second = rig.server(at=address)
        until(lambda: second.peers(), "it is back", PATIENCE)
        go_on.set()  # the result of the dead learner's call comes now
        assert second.ask(second.peers()[0], "kit/task", {"n": 2}, timeout=PATIENCE) == ({"n": 2}, LARGE)
        assert done == [1, 2]
        client.send_batch(stacked(1, 0, 8))
        drain(second, 8).check({1: 8})

    @pytest.mark.parametrize("end", ["killed", "stopped"])
    def test_a_worker_that_dies_while_it_answers_a_call_tears_nothing(self, rig: Rig, needs: Needs, end: str) -> None:
        needs("processes")
        server = rig.server()
        other = rig.client(server, name="other")
        other.serve("kit/here", lambda body, blob: (body, blob))
        for moment in MOMENTS:
            hearing, saying = rig.pipe()
            process = rig.spawn(workers.serve, str(server.address), saying, self.connect_options)  # type: ignore[attr-defined]
            assert hear(hearing) == "ready"
            peer = next(peer for peer in server.peers() if peer.name == "serving")
            outcome: list[Any] = []
            asking = threading.Thread(target=lambda: outcome.append(returns(lambda: server.ask(peer, "kit/large"), PATIENCE)), daemon=True)  # noqa: B023
            asking.start()
            assert hear(hearing) == "answering"
            rig.pause(moment)
            if end == "stopped":
                stop(process.pid)
                lost = False
                try:
                    _call(server, "other")
                except ConnectionClosedError:
                    if self.capabilities.independent:  # type: ignore[attr-defined]
                        raise
                    lost = True
                    _call(server, "other")
                _go_on(process)
                asking.join(PATIENCE)
                assert lost or bytes(outcome[0][1]) == LARGE, outcome
            process.kill()
            asking.join(PATIENCE)
            _whole_or_lost(outcome[0])
            until(lambda: all(peer.name != "serving" for peer in server.peers()), "it is gone", PATIENCE)
        assert server.stats()["clients/parked"] == 1, "one thread of the other client waits for a call"

    @pytest.mark.parametrize("end", ["killed", "stopped"])
    def test_a_drain_waits_for_no_dead_worker(self, rig: Rig, needs: Needs, end: str) -> None:
        needs("processes")
        server = rig.server()
        parked: list[Later] = []
        gone: list[int] = []

        def park(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Later:
            parked.append(later := Later(peer))
            later.on_gone(lambda: gone.append(body["n"]))
            return later

        server.serve("kit/later", park)
        hearing, saying = rig.pipe()
        parking = rig.spawn(workers.park, str(server.address), "kit/later", 20, saying, self.connect_options)  # type: ignore[attr-defined]
        serving = rig.spawn(workers.serve, str(server.address), saying, self.connect_options)  # type: ignore[attr-defined]
        assert {hear(hearing), hear(hearing)} == {"asked", "ready"}
        until(lambda: len(parked) == 20, "all are parked", PATIENCE)
        peer = next(peer for peer in server.peers() if peer.name == "serving")
        outcome: list[Any] = []
        asking = threading.Thread(target=lambda: outcome.append(returns(lambda: server.ask(peer, "kit/sleep"), PATIENCE)), daemon=True)
        asking.start()
        assert hear(hearing) == "asleep"
        client = rig.client(server)
        client.send_batch(stacked(1, 0, 8))
        client.wait()
        if end == "stopped":
            stop(parking.pid)
            stop(serving.pid)
            assert parked[0]({}), "it is answered, although nobody reads the answer"
        killer = threading.Thread(target=lambda: [process.kill() for process in (parking, serving) if end == "killed"])
        killer.start()
        assert returns(lambda: server.drain(timeout=1), PATIENCE) is None
        killer.join(PATIENCE)
        assert server.peers() == [] and not server.ready
        asking.join(PATIENCE)
        assert isinstance(outcome[0], (ConnectionClosedError, ClosedError)), outcome
        until(lambda: len(gone) >= 19, "the handlers of the others are told", PATIENCE)
        assert not any(later({}) for later in parked)
        assert server.stats()["clients/parked"] == 0
        drain(server, 8).check({1: 8})

    def test_a_drain_waits_for_no_handler(self, rig: Rig) -> None:
        server = rig.server()
        began, go_on = threading.Event(), threading.Event()

        def slow(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
            began.set()
            go_on.wait(PATIENCE)
            return body, blob

        server.serve("kit/slow", slow)
        client = rig.client(server)
        pending = client._requests.ask("kit/slow", {"n": 1})
        assert began.wait(PATIENCE)
        try:
            assert returns(lambda: server.drain(timeout=0.5), PATIENCE) is None
            assert isinstance(returns(lambda: pending(PATIENCE), PATIENCE), ConnectionClosedError)
            assert not server.ready
        finally:
            go_on.set()
        until(lambda: not server.peers(), "the handler's client is gone with its handler", PATIENCE)

    def _learner(self, rig: Rig, address: str = "") -> tuple[BaseProcess, Any, Any, str]:
        """A process with a learner: the process, the pipe that it obeys, the pipe on which it reports, and its address."""
        if not address:
            address = str(rig.place())
        obeying, telling = rig.pipe()
        hearing, saying = rig.pipe()
        learner = rig.spawn(workers.answer, address, obeying, saying, self.listen_options())  # type: ignore[attr-defined]
        return learner, telling, hearing, hear(hearing)

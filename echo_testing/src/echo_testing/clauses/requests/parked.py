"""Clauses about requests that are answered later (`Server.serve`, `Later`)."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from echo_core.base.errors import ClosedError, ConnectionClosedError, EchoError, EchoTimeoutError
from echo_core.server.server import Server
from echo_core.wire.later import Later
from echo_core.wire.peer import Peer

from ... import workers
from ...processes import returns, stop, until
from ...rig import PATIENCE, Rig, drain, hear
from ...rig_roles import asking_roles
from ...samples import sample, stacked
from .. import carrier

Needs = Callable[[str], None]


class Desk:
    """Serves "kit/later" and keeps what it has to answer, in order."""

    def __init__(self, server: Server) -> None:
        self.waiting: deque[tuple[dict[str, Any], bytes, Later]] = deque()
        self.gone: list[Any] = []
        server.serve("kit/later", self._asked)

    def _asked(self, server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Later:
        later = Later(peer)
        later.on_gone(lambda: self.gone.append(body.get("n")))
        self.waiting.append((body, blob, later))
        return later

    def take(self, count: int = 1) -> list[Later]:
        """The next requests, once there are so many."""
        until(lambda: len(self.waiting) >= count, f"{count} requests wait, not {len(self.waiting)}", PATIENCE)
        return [self.waiting.popleft()[2] for _ in range(count)]


def _parked(server: Server) -> int:
    return int(server.stats()["clients/parked"])


class ParkedClauses:
    def test_an_answer_may_come_later_and_from_any_thread(self, rig: Rig) -> None:
        server = rig.server()
        desk = Desk(server)
        client = rig.client(server)
        pending = client._requests.ask("kit/later", {"n": 1}, b"blob")
        client.send_batch(stacked(1, 0, 8))
        drain(server, 8).check({1: 8})
        assert client.request("ping", blob=b"meanwhile")[1] == b"meanwhile"
        body, blob, later = desk.waiting.popleft()
        assert (body, blob, later.peer.name) == ({"n": 1}, b"blob", server.peers()[0].name)  # type: ignore[union-attr]
        assert _parked(server) == 1
        answered: list[bool] = []
        thread = threading.Thread(target=lambda: answered.append(later({"m": 2}, b"answer")))
        thread.start()
        body, blob = pending(PATIENCE)  # type: ignore[assignment]
        thread.join(PATIENCE)
        assert (body, bytes(blob), answered) == ({"m": 2}, b"answer", [True])
        assert not later({"m": 3}) and not later.fail("too late"), "the first answer counts"
        assert _parked(server) == 0 and desk.gone == []

    def test_later_answers_come_in_any_order(self, rig: Rig) -> None:
        server = rig.server()
        desk = Desk(server)
        client = rig.client(server)
        pending = [client._requests.ask("kit/later", {"n": n}) for n in range(6)]
        later = desk.take(6)
        for n in (5, 0, 3, 1, 4):
            assert later[n]({"n": n}, bytes([n]))
        assert later[2].fail(EchoError("no task for you"))
        for n in (0, 1, 3, 4, 5):
            body, blob = pending[n](PATIENCE)
            assert (body, bytes(blob)) == ({"n": n}, bytes([n]))
        with pytest.raises(EchoError, match="no task for you"):
            pending[2](PATIENCE)

    def test_later_answers_and_their_requests_may_be_large(self, rig: Rig) -> None:
        server = rig.server()
        desk = Desk(server)
        client = rig.client(server)
        large = bytes(range(256)) * 12_000
        outcome: list[Any] = []
        thread = threading.Thread(target=lambda: outcome.append(client.request("kit/later", {}, large, timeout=PATIENCE)), daemon=True)
        thread.start()
        until(lambda: desk.waiting, "it is asked", PATIENCE)
        assert desk.waiting[0][1] == large
        assert int(server.stats()["clients/held_bytes"]) >= len(large), "it counts in the client's memory"
        assert desk.take()[0]({"n": 1}, [large, b"end"])
        thread.join(PATIENCE)
        assert outcome == [({"n": 1}, large + b"end")]
        until(lambda: server.stats()["clients/held_bytes"] == 0, "nothing is held", PATIENCE)

    def test_a_request_that_nobody_can_answer_fails(self, rig: Rig) -> None:
        server = rig.server()
        server.serve("kit/dropped", lambda server, peer, body, blob: Later(peer))
        server.serve("kit/early", _early)
        client = rig.client(server)
        with pytest.raises(EchoError, match="no answer was given"):
            client.request("kit/dropped")
        assert client.request("kit/early") == ({"early": True}, b"bird")
        assert _parked(server) == 0

    def test_a_later_answer_to_a_client_that_left_changes_nothing(self, rig: Rig) -> None:
        server = rig.server()
        desk = Desk(server)
        client, other = rig.client(server), rig.client(server)
        asking = [client._requests.ask("kit/later", {"n": n}) for n in range(2)]
        later = desk.take(2)
        last = other._requests.ask("kit/later", {"n": 2})
        later += desk.take()
        client.close()
        until(lambda: sorted(desk.gone) == [0, 1], "both are gone", PATIENCE)
        assert [one({}) for one in later] == [False, False, True]
        last(PATIENCE)
        del asking
        told: list[str] = []
        later[0].on_gone(lambda: told.append("at once"))
        later[2].on_gone(lambda: told.append("never"))
        assert told == ["at once"] and _parked(server) == 0
        assert server.stats()["clients/held_bytes"] == 0

    @carrier
    @asking_roles
    def test_a_cut_link_ends_parked_requests_at_both_ends(self, rig: Rig, needs: Needs, role: str) -> None:
        needs("severable")
        server = rig.server()
        desk = Desk(server)
        client = rig.client(server, role=role)
        pending = client._requests.ask("kit/later", {"n": 7})
        later = desk.take()[0]
        rig.contract.sever(server, client, reset=True)
        outcome = returns(lambda: pending(PATIENCE), PATIENCE)
        assert isinstance(outcome, ConnectionClosedError), outcome
        until(lambda: desk.gone == [7], "the server knows", PATIENCE)
        assert not later({})
        if role == "worker":
            client.send_batch(stacked(1, 0, 8))
            drain(server, 8).check({1: 8})
        until(lambda: client.stats()["connected"], "it is back")
        again = client._requests.ask("kit/later", {"n": 8})
        assert desk.take()[0]({"n": 8})
        assert again(PATIENCE)[0] == {"n": 8}

    def test_a_closing_server_fails_what_is_parked(self, rig: Rig) -> None:
        server = rig.server()
        desk = Desk(server)
        client = rig.client(server)
        pending = client._requests.ask("kit/later", {"n": 0})
        later = desk.take()[0]
        server.close(restarting=True)
        outcome = returns(lambda: pending(PATIENCE), PATIENCE)
        assert isinstance(outcome, ClosedError), outcome
        assert not later({}) and desk.gone == [0]

    def test_parked_requests_of_many_clients_hold_up_no_samples(self, rig: Rig) -> None:
        server = rig.server(batch_size=10)
        desk = Desk(server)
        clients = [rig.client(server) for _ in range(20)]
        pending = [client._requests.ask("kit/later", {"n": n}) for client in clients for n in range(100)]
        until(lambda: len(desk.waiting) == len(pending), "all are parked", PATIENCE)
        assert _parked(server) == len(pending)
        for number in range(10):
            for maker, client in enumerate(clients):
                client.send(sample(maker, number))
        drain(server, 200).check(dict.fromkeys(range(20), 10))
        for client in clients:
            assert client.request("ping", blob=b"still")[1] == b"still"
        for later in desk.take(len(pending)):
            assert later({})
        for one in pending:
            one(PATIENCE)
        assert _parked(server) == 0

    def test_too_many_parked_requests_are_refused_and_others_go_on(self, rig: Rig) -> None:
        server = rig.server(max_parked_per_client=3, max_parked=5)
        desk = Desk(server)
        greedy, other = rig.client(server), rig.client(server)
        first = [greedy._requests.ask("kit/later", {"n": n}) for n in range(4)]
        with pytest.raises(EchoError, match=r"3 requests of this connection .*max_parked_per_client"):
            first[3](PATIENCE)
        more = [other._requests.ask("kit/later", {"n": 10 + n}) for n in range(3)]
        with pytest.raises(EchoError, match=r"5 requests of all clients .*max_parked="):
            more[2](PATIENCE)
        until(lambda: sorted(desk.gone) == [3, 12], "their handlers are told", PATIENCE)
        later = desk.take(6)
        assert [one({"n": n}) for n, one in enumerate(later)] == [True, True, True, False, True, True]
        assert [one(PATIENCE)[0]["n"] for one in (*first[:3], *more[:2])] == [0, 1, 2, 4, 5]

    def test_killed_and_stopped_workers_leave_nothing_parked(self, rig: Rig, needs: Needs) -> None:
        needs("processes")
        server = rig.server()
        desk = Desk(server)
        hearing, saying = rig.pipe()
        process = rig.spawn(workers.park, str(server.address), "kit/later", 20, saying, self.connect_options)  # type: ignore[attr-defined]
        assert hear(hearing) == "asked"
        later = desk.take(20)
        assert process.pid is not None
        stop(process.pid)
        for one in later[:10]:
            assert one({})
        assert rig.client(server).request("ping", blob=b"others")[1] == b"others"
        os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.join(PATIENCE)
        until(lambda: len(desk.gone) == 10, "its death is noticed", PATIENCE)
        assert _parked(server) == 0 and not later[10]({})
        client = rig.client(server)
        pending = client._requests.ask("kit/later", {})
        assert desk.take()[0]({"n": 1})
        assert pending(PATIENCE)[0] == {"n": 1}


    @asking_roles
    @pytest.mark.parametrize("end", ["killed", "stopped"])
    def test_a_learner_that_dies_with_parked_requests_is_noticed(self, rig: Rig, needs: Needs, end: str, role: str) -> None:
        needs("processes")
        address = rig.place()
        hearing, saying = rig.pipe()
        learner = rig.spawn(workers.shelve, str(address), "kit/never", saying, self.listen_options())  # type: ignore[attr-defined]
        client = rig.client(hear(hearing), role=role)
        pending = [client._requests.ask("kit/never", {}) for _ in range(3)]
        assert client.request("ping", blob=b"here")[1] == b"here"
        assert learner.pid is not None
        if end == "stopped":
            stop(learner.pid)
            with pytest.raises(EchoTimeoutError):
                pending.pop()(0.2)
        learner.kill()
        for one in pending:
            outcome = returns(lambda one=one: one(PATIENCE), PATIENCE)
            assert isinstance(outcome, ConnectionClosedError), outcome


def _early(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Later:
    later = Later()
    assert later({"early": True}, b"bird") and not later({})
    return later

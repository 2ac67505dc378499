"""Clauses about finding a server (`Client(resolve=...)`), and about taking one out of service (`Server.drain`)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from echo_core.base.address import Address
from echo_core.base.errors import ClosedError, ConnectionClosedError, EchoTimeoutError, HandshakeRefused

from .. import workers
from ..processes import returns, stop, until
from ..rig import PATIENCE, Rig, drain, hear
from ..samples import stacked

Needs = Callable[[str], None]


class FindingClauses:
    def test_a_client_asks_where_its_server_is_before_every_dial(self, rig: Rig) -> None:
        first, second = rig.server(), rig.server()
        place, asked = [first.address], []

        def resolve(address: Address) -> Address:
            asked.append(address)
            return place[0]

        client = rig.client(first.address, resolve=resolve)
        client.send_batch(stacked(1, 0, 8))
        client.wait()
        tally = drain(first, 8)
        place[0] = second.address
        first.close(restarting=True)
        client.send_batch(stacked(1, 8, 8))
        client.wait()
        drain(second, 16, tally).check({1: 16})
        assert set(asked) == {client.address} and len(asked) >= 2
        assert client.request("ping", blob=b"moved")[1] == b"moved"

    def test_a_client_waits_for_a_server_that_is_not_up_yet(self, rig: Rig) -> None:
        server = rig.server()
        answers: list[Any] = [None, OSError("no answer"), None, server.address]

        def resolve(address: Address) -> Any:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        with rig.client(server.address, resolve=resolve) as client:
            client.send_batch(stacked(1, 0, 8))
            drain(server, 8).check({1: 8})
        with pytest.raises(EchoTimeoutError, match="not up yet"):
            rig.client(server.address, resolve=lambda address: None, timeout=0.1)

    def test_a_resolver_that_does_not_answer_holds_nobody_up(self, rig: Rig) -> None:
        first, second = rig.server(), rig.server()
        answer, place = threading.Event(), [first.address]

        def resolve(address: Address) -> Address:
            if not place:
                answer.wait()
                return second.address
            return place[0]

        try:
            client = rig.client(first.address, resolve=resolve)
            client.send_batch(stacked(1, 0, 8))
            client.wait()
            tally = drain(first, 8)
            place.clear()
            with pytest.raises(EchoTimeoutError, match="has not answered"):
                rig.client(second.address, resolve=resolve, timeout=0.3)
            first.drain(timeout=PATIENCE)
            client.send_batch(stacked(1, 8, 8))
            assert isinstance(returns(lambda: client.wait(0.3), PATIENCE), (EchoTimeoutError, ConnectionClosedError))
            answer.set()
            client.wait()
            drain(second, 16, tally).check({1: 16})
        finally:
            answer.set()

    def test_a_draining_server_acknowledges_what_has_come_and_takes_no_more(self, rig: Rig) -> None:
        server, other = rig.server(batch_size=4, num_buffers=8), rig.server(batch_size=4)
        address, place = server.address, [server.address]
        staying, moving = rig.client(server), rig.client(address, resolve=lambda address: place[0])
        staying.send_batch(stacked(1, 0, 8))
        moving.send_batch(stacked(2, 0, 8))
        for client in (staying, moving):
            client.wait()
        pending = staying._requests.ask("calls/next", {"op": "kit/nothing"})
        assert server.ready
        until(lambda: server.stats()["clients/parked"] == 1, "it is parked", PATIENCE)
        place[0] = other.address
        server.drain(timeout=PATIENCE)
        assert not server.ready and server.peers() == []
        assert isinstance(returns(lambda: pending(PATIENCE), PATIENCE), ConnectionClosedError)
        tally = drain(server, 16)
        moving.send_batch(stacked(2, 8, 4))
        moving.wait()
        drain(other, 20, tally).check({1: 8, 2: 12})
        outcome = returns(lambda: rig.client(address, timeout=0.3), PATIENCE)
        assert isinstance(outcome, (EchoTimeoutError, HandshakeRefused)), outcome
        server.drain()
        with pytest.raises(ClosedError, match="drained"):
            server.start()
        server.close()
        with pytest.raises(ClosedError):
            server.drain()

    def test_an_admin_may_drain_a_server(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)
        assert client.request("drain", {"timeout": 5})[0] == {"draining": True}
        until(lambda: not server.ready and server.peers() == [], "it is drained", PATIENCE)

    def test_stopped_and_killed_ends_hold_up_no_drain(self, rig: Rig, needs: Needs) -> None:
        needs("processes")
        server = rig.server()
        hearing, saying = rig.pipe()
        workers_there = [rig.spawn(workers.park, str(server.address), "calls/next", 0, saying, self.connect_options) for _ in range(2)]  # type: ignore[attr-defined]
        for _ in workers_there:
            assert hear(hearing) == "asked"
        stopped, killed = workers_there
        stop(stopped.pid)
        killing = threading.Timer(0.1, killed.kill)  # it may have been sent away before that, and have ended
        killing.start()
        assert returns(lambda: server.drain(timeout=1), PATIENCE) is None
        killing.join(PATIENCE)  # a busy machine may be late
        assert server.peers() == [] and not server.ready

    def test_a_learner_that_is_killed_while_it_drains_is_noticed(self, rig: Rig, needs: Needs) -> None:
        needs("processes")
        needs("restarts")
        address = rig.place()
        hearing, saying = rig.pipe()
        learner = rig.spawn(workers.shelve, str(address), "kit/never", saying, self.listen_options())  # type: ignore[attr-defined]
        assert hear(hearing) == str(address)
        asking, heard = rig.pipe()
        worker = rig.spawn(workers.park, str(address), "kit/never", 1, heard, self.connect_options)  # type: ignore[attr-defined]
        assert hear(asking) == "asked"
        client = rig.client(address)
        pending = client._requests.ask("kit/never", {})
        client.request("ping")
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)  # so that the drain takes its time
        assert client.request("drain", {"timeout": 60})[0] == {"draining": True}
        until(lambda: not client.stats()["connected"], "it was told", PATIENCE)
        assert isinstance(returns(lambda: pending(PATIENCE), PATIENCE), ConnectionClosedError)
        learner.kill()
        learner.join(PATIENCE)
        second = rig.server(at=address)
        client.send_batch(stacked(1, 0, 8))
        drain(second, 8).check({1: 8})

"""Clauses about closing: sent samples are delivered, no call hangs, and later calls raise a clear error."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from echo_core.base.errors import ClosedError, ConnectionClosedError, EchoError, EchoTimeoutError
from echo_core.client.client import Client

from .. import workers
from ..processes import pressing_ctrl_c, returns, until
from ..rig import PATIENCE, Rig, drain, hear
from ..samples import Tally, example, sample, stacked
from . import carrier

Needs = Callable[[str], None]

CALLS: dict[str, Callable[[Client], Any]] = {
    "send": lambda client: client.send(sample(1, 0)),
    "send_batch": lambda client: client.send_batch(stacked(1, 0, 2)),
    "flush": lambda client: client.flush(),
    "wait": lambda client: client.wait(),
    "weights": lambda client: client.weights(),
    "request": lambda client: client.request("ping"),
}


#: Calls that wait while the learner takes no samples and publishes no weights.
WAITS: dict[str, Callable[[Client, float], Any]] = {
    "send": lambda client, timeout: client.send(sample(1, 9), timeout),
    "send_batch": lambda client, timeout: client.send_batch(stacked(1, 9, 2), timeout),
    "wait": lambda client, timeout: client.wait(timeout),
    "weights": lambda client, timeout: client.weights(timeout),
    "request": lambda client, timeout: client.request("ping", timeout=timeout),
    "close": lambda client, timeout: client.close(timeout),
}


def interrupted_by(event: Callable[[], Any], call: Callable[[], Any]) -> Any:
    """Run `call`, which waits, on another thread, let `event` happen, and return what `call` returns or raises."""
    outcome: list[Any] = []
    waiting = threading.Thread(target=lambda: outcome.append(returns(call, PATIENCE)), daemon=True)
    waiting.start()
    time.sleep(0.1)
    event()
    waiting.join(PATIENCE + 5)
    return outcome[0]


class EndingClauses:
    @carrier
    def test_close_right_after_the_last_send_loses_nothing(self, rig: Rig) -> None:
        server = rig.server(batch_size=7, num_buffers=20)
        tally = Tally()
        for maker, count in enumerate((1, 7, 20, 3, 32)):
            client = rig.client(server)
            for number in range(count):
                client.send(sample(maker, number))
            client.close()
            tally.count += count
            assert server.stats()["store/samples_inserted_total"] == tally.count
        drain(server, 63).check({0: 1, 1: 7, 2: 20, 3: 3, 4: 32})

    def test_close_waits_for_a_slow_learner(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.client(server)
        client.send_batch(stacked(1, 0, 50))
        closing = threading.Thread(target=client.close, daemon=True)
        closing.start()
        drain(server, 50).check({1: 50})
        closing.join(PATIENCE)
        assert not closing.is_alive()

    def test_a_send_beside_close_is_delivered_or_raises(self, rig: Rig) -> None:
        large = {"bytes": np.arange(16 << 20, dtype=np.uint8)}
        server = rig.server(large, batch_size=1)
        for milliseconds in range(4):
            client = rig.client(server, large)
            outcome: list[Any] = []
            sending = threading.Thread(target=lambda client=client, outcome=outcome: outcome.append(returns(lambda: client.send(large), PATIENCE)))
            sending.start()
            time.sleep(milliseconds / 1000)
            client.close()
            sending.join()
            if outcome[0] is None:
                assert (server.sample(timeout=PATIENCE).batch["bytes"][0] == large["bytes"]).all()
            else:
                assert isinstance(outcome[0], EchoError), outcome

    def test_close_says_what_it_could_not_deliver(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.client(server)
        client.send_batch(stacked(1, 0, 2))
        client.wait()
        client.send_batch(stacked(1, 2, 3))
        with pytest.raises((EchoTimeoutError, ConnectionError), match=r"\b3\b"):
            client.close(timeout=0.3)
        with pytest.raises(ClosedError):
            client.send(sample(1, 5))
        client.close()

    @pytest.mark.parametrize("call", CALLS)
    def test_use_after_close_is_an_error(self, rig: Rig, call: str) -> None:
        server = rig.server()
        client = rig.client(server)
        client.close()
        client.close()
        with pytest.raises(ClosedError):
            CALLS[call](client)
        client.stats()

    @pytest.mark.parametrize("call", [*CALLS, "close"])
    def test_no_call_hangs_when_the_learner_is_gone(self, rig: Rig, call: str) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.hasty(server, timeout=0.5, max_inflight_msgs=8)
        client.send_batch(stacked(1, 0, 5))  # three more than fit into the store
        server.close(timeout=0, restarting=True)

        def until_it_raises() -> None:
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end:  # a send succeeds while the window has room
                (CALLS | {"close": lambda client: client.close()})[call](client)

        outcome = returns(until_it_raises, PATIENCE)
        assert isinstance(outcome, (ConnectionError, TimeoutError, ClosedError)), outcome
        assert isinstance(outcome, EchoError)
        assert len(str(outcome)) > 10

    @carrier
    @pytest.mark.parametrize("call", ["send", "send_batch", "wait", "weights"])
    def test_the_learners_end_wakes_who_waits(self, rig: Rig, call: str) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.hasty(server, timeout=1, max_inflight_msgs=2)
        client.send_batch(stacked(1, 0, 4))
        outcome = interrupted_by(lambda: server.close(timeout=0, restarting=True), lambda: CALLS[call](client))
        assert isinstance(outcome, (ConnectionError, TimeoutError)), outcome

    @pytest.mark.parametrize("end", ["killed", "closed"])
    def test_a_call_that_gives_up_without_a_learner_says_that_it_is_gone(self, rig: Rig, needs: Needs, end: str) -> None:
        if end == "killed":
            needs("processes")
            hearing, saying = rig.pipe()
            learner = rig.spawn(workers.neglect, str(rig.place()), saying, self.listen_options())
            address = hear(hearing)
        else:
            server = rig.server(batch_size=1, num_buffers=2)
            address = server.address
        client = rig.client(address, max_inflight_msgs=4)
        client.send_batch(stacked(1, 0, 6))  # two fit into the store, four into the window
        learner.kill() if end == "killed" else server.close(timeout=0, restarting=True)
        until(lambda: not client.stats()["connected"], "the client notices that the learner is gone")
        for name, call in WAITS.items():
            outcome = returns(lambda call=call: call(client, 0.1), PATIENCE)
            assert type(outcome) is ConnectionClosedError, (name, outcome)

    def test_a_call_that_gives_up_while_the_learner_lives_says_that_it_is_late(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.client(server, max_inflight_msgs=4)
        client.send_batch(stacked(1, 0, 6))
        for name in ("send", "send_batch", "wait", "weights", "close"):
            outcome = returns(lambda name=name: WAITS[name](client, 0.1), PATIENCE)
            assert type(outcome) is EchoTimeoutError, (name, outcome)

    def test_a_client_that_finds_no_learner_says_that_it_waited(self, rig: Rig) -> None:
        server = rig.server()
        address = server.address
        server.close(timeout=0)
        assert type(returns(lambda: rig.client(address, timeout=0.2), PATIENCE)) is EchoTimeoutError

    def test_a_close_after_one_that_ctrl_c_ended_says_what_is_lost(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.client(server)
        client.send_batch(stacked(1, 0, 2))
        client.wait()
        client.send_batch(stacked(1, 2, 3))
        assert pressing_ctrl_c(client.close)
        with pytest.raises(ConnectionClosedError, match=r"\b3 samples not acknowledged"):
            client.close()
        client.close()

    def test_ctrl_c_in_the_close_of_a_server_leaves_nothing_open(self, rig: Rig, needs: Needs) -> None:
        needs("processes")
        address = rig.place()
        server = rig.server(batch_size=2, num_buffers=4, at=address)
        hearing, saying = rig.pipe()
        worker = rig.spawn(workers.pour, str(address), 1, 48, False, saying, self.connect_options)
        drain(server, 20)
        assert hear(hearing) == "ready"
        os.kill(worker.pid or 0, signal.SIGSTOP)  # so that the goodbye takes its time
        woken: list[Any] = []
        learner = threading.Thread(target=lambda: woken.append(returns(lambda: list(server.dataset_iter()), PATIENCE)), daemon=True)
        learner.start()
        pressing_ctrl_c(lambda: server.close(5.0))
        learner.join(PATIENCE)
        assert server.closed and isinstance(woken[0], list), "nobody is left waiting"
        returns(server.close, PATIENCE)
        again = rig.server(batch_size=8, at=address)
        rig.client(again).send_batch(stacked(2, 0, 8))
        drain(again, 8).check({2: 8})

    @pytest.mark.parametrize("call", ["send", "wait", "weights"])
    def test_closing_the_client_wakes_who_waits(self, rig: Rig, call: str) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.client(server, max_inflight_msgs=2)
        client.send_batch(stacked(1, 0, 4))
        outcome = interrupted_by(lambda: returns(lambda: client.close(timeout=0.1), PATIENCE), lambda: CALLS[call](client))
        assert isinstance(outcome, (ClosedError, ConnectionError, TimeoutError)), outcome

    @carrier
    def test_a_closing_server_commits_what_has_arrived(self, rig: Rig) -> None:
        server = rig.server(batch_size=4, num_buffers=8)
        client = rig.client(server)
        client.send_batch(stacked(1, 0, 16))
        client.wait()
        server.close()
        tally = Tally()
        while (one := server.sample(timeout=PATIENCE)) is not None:
            tally.add(one.batch)
        tally.check({1: 16})

    def test_a_client_that_left_is_no_longer_a_peer(self, rig: Rig) -> None:
        server = rig.server()
        stays, leaves = rig.client(server, name="stays"), rig.client(server, name="leaves")
        until(lambda: len(server.peers()) == 2, "both are known")
        leaves.close()
        until(lambda: [p.name for p in server.peers()] == ["stays"], "one has left")
        assert server.stats()["store/active_connections"] == 1
        stays.send_batch(stacked(1, 0, 8))
        drain(server, 8).check({1: 8})

    def test_dropping_a_client_hangs_nobody(self, rig: Rig) -> None:
        server = rig.server()
        client = Client(server.address, example(), **self.connect_options)
        client.send(sample(1, 0))
        del client
        rig.client(server).send_batch(stacked(2, 0, 15))
        assert server.sample(timeout=PATIENCE) is not None
        server.publish({"w": np.zeros(3)})

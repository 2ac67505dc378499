"""Clauses about backpressure: a call that must wait waits for exactly its timeout, and no sample is lost."""

from __future__ import annotations

import math
import threading

import pytest

from echo_core.base.errors import EchoTimeoutError

from ..processes import returns, until
from ..rig import PATIENCE, Rig, drain
from ..samples import sample, stacked
from ..threads import ended, in_thread
from . import carrier
from .ending import WAITS

WINDOW = 4  # samples


class WaitingClauses:
    @carrier
    def test_a_full_store_stops_the_sender_and_loses_nothing(self, rig: Rig) -> None:
        server = rig.server(batch_size=2, num_buffers=2)
        client = rig.client(server, max_inflight_msgs=WINDOW)
        for number in range(4):
            client.send(sample(1, number))
        client.wait()
        for number in range(4, 4 + WINDOW):
            client.send(sample(1, number))
        for timeout in (0, 0.3):
            with pytest.raises(EchoTimeoutError, match="(?i)learner|server") as caught:
                client.send(sample(1, 4 + WINDOW), timeout=timeout)
            assert "wait longer (timeout=)" in str(caught.value), "what to do about it"
            with pytest.raises(EchoTimeoutError, match="(?i)learner|server"):
                client.send_batch(stacked(1, 4 + WINDOW, 2), timeout=timeout)
            with pytest.raises(EchoTimeoutError, match="(?i)learner|server"):
                client.wait(timeout=timeout)
        stats = client.stats()
        assert (stats["acknowledged"], stats["unacknowledged"]) == (4, WINDOW)
        assert stats["send_blocked"] >= 1
        assert server.stats()["store/samples_inserted_total"] == 4
        tally = drain(server, 4)
        client.send(sample(1, 4 + WINDOW), timeout=PATIENCE)
        client.send_batch(stacked(1, 5 + WINDOW, 3), timeout=PATIENCE)
        drain(server, 8 + WINDOW, tally).check({1: 8 + WINDOW})
        client.wait()

    def test_infinite_timeouts_are_timeouts(self, rig: Rig) -> None:
        server = rig.server(batch_size=2)
        client = rig.client(server)
        client.send(sample(1, 0), timeout=math.inf)
        client.send_batch(stacked(1, 1, 1), timeout=math.inf)
        client.flush(timeout=math.inf)
        client.wait(timeout=math.inf)
        client.close(timeout=math.inf)
        drain(server, 2).check({1: 2})

    @pytest.mark.parametrize("timeout", [-1.0, math.nan])
    def test_a_call_that_waits_refuses_a_timeout_without_a_meaning(self, rig: Rig, timeout: float) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.client(server, max_inflight_msgs=WINDOW)
        client.send_batch(stacked(1, 0, 2 + WINDOW))  # the next sample has to wait
        for name, call in WAITS.items():
            refused = returns(lambda call=call: call(client, timeout))  # type: ignore[misc]
            assert type(refused) is ValueError and "timeout must be" in str(refused), (name, refused)
        drain(server, 2 + WINDOW).check({1: 2 + WINDOW})

    def test_the_default_timeout_is_the_clients(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.hasty(server, timeout=0.3)
        client.send_batch(stacked(1, 0, 3))
        with pytest.raises(EchoTimeoutError):
            client.wait()
        with pytest.raises(EchoTimeoutError):
            client.weights()
        drain(server, 3).check({1: 3})

    def test_a_waiting_sender_goes_on_when_there_is_room(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.client(server, max_inflight_msgs=WINDOW)
        worker = threading.Thread(
            target=lambda: [client.send(sample(1, number)) for number in range(200)], daemon=True
        )
        worker.start()
        until(lambda: server.stats()["store/samples_inserted_total"] == 2, "the store is full")
        drain(server, 200).check({1: 200})
        worker.join(PATIENCE)
        assert not worker.is_alive()

    def test_workers_take_turns_at_a_full_store(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        clients = [rig.client(server, max_inflight_msgs=WINDOW) for _ in range(3)]

        def work(maker: int) -> None:
            for number in range(300):
                clients[maker].send(sample(maker, number))
            clients[maker].wait()

        threads = [in_thread(work, maker) for maker in range(3)]
        drain(server, 900).check(dict.fromkeys(range(3), 300))
        ended(*threads)

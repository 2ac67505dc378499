"""Clauses about client ids: two live clients never share one, and nothing acknowledged is lost where ids are mixed up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from echo_core.base.errors import EchoError, HandshakeRefused

from ... import workers
from ...processes import stop, until
from ...rig import Rig, drain, hear
from ...samples import sample, stacked
from .. import carrier

Needs = Callable[[str], None]

CLIENT_ID = "1d" * 16


class ClientIdClauses:
    def test_a_second_live_client_with_an_id_is_refused_by_name(self, rig: Rig) -> None:
        server = rig.server(batch_size=8, num_buffers=8)
        first = rig.client(server, client_id=CLIENT_ID, name="first")
        first.send_batch(stacked(1, 0, 4))
        first.wait()
        with pytest.raises(HandshakeRefused, match="in use by worker 'first'") as refused:
            rig.client(server, client_id=CLIENT_ID, name="second")
        assert refused.value.code == "identity" and CLIENT_ID in str(refused.value)
        first.send_batch(stacked(1, 4, 4))
        first.wait()
        assert first.stats()["reconnects"] == 0
        drain(server, 8).check({1: 8})

    def test_a_holder_that_waits_for_space_keeps_its_id(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        first = rig.client(server, client_id=CLIENT_ID, name="first")
        first.send_batch(stacked(1, 0, 8))
        until(lambda: server.peers()[0].state == "waiting for space", "it waits for space")
        with pytest.raises(HandshakeRefused, match="in use by worker 'first'"):
            rig.client(server, client_id=CLIENT_ID, name="second")
        drain(server, 8).check({1: 8})
        first.wait()

    def test_an_id_is_free_once_its_client_has_closed(self, rig: Rig) -> None:
        server = rig.server(batch_size=8, num_buffers=8)
        for maker in (1, 2):
            client = rig.client(server, client_id=CLIENT_ID)
            client.send_batch(stacked(maker, 0, 8))
            client.close()
        drain(server, 16).check({1: 8, 2: 8})

    def test_an_observer_may_have_the_id_of_a_worker(self, rig: Rig) -> None:
        server = rig.server(batch_size=8)
        worker = rig.client(server, client_id=CLIENT_ID)
        observer = rig.client(server, client_id=CLIENT_ID, role="observer")
        assert "store/active_connections" in observer.server_stats()
        observer.close()
        worker.send_batch(stacked(1, 0, 8))
        worker.wait()
        drain(server, 8).check({1: 8})

    @carrier
    def test_a_link_that_is_cut_comes_back_at_once(self, rig: Rig, needs: Needs) -> None:
        needs("severable")
        server = rig.server(batch_size=8, num_buffers=8)
        client = rig.client(server, client_id=CLIENT_ID)
        for round in range(2):
            client.send_batch(stacked(1, 8 * round, 8))
            client.wait()
            self.sever(server, client, reset=True)
            until(lambda round=round: client.stats()["reconnects"] > round and client.stats()["connected"], "it is back")
        drain(server, 16).check({1: 16})

    def test_the_id_of_a_stopped_process_can_be_taken_over(self, rig: Rig, needs: Needs) -> None:
        """It gives no sign of life. Nothing that it was acknowledged is missing."""
        needs("processes")
        server = rig.server(batch_size=8)
        reader, writer = rig.pipe()
        options = {**self.connect_options, "client_id": CLIENT_ID}
        process = rig.spawn(workers.rest, str(server.address), 1, 4, writer, options)
        assert hear(reader) == "ready"
        stop(process.pid)
        try:
            client = rig.client(server, client_id=CLIENT_ID, name="successor")
            client.send_batch(stacked(2, 0, 4))
            client.wait()
            until(lambda: [peer.name for peer in server.peers()] == ["successor"], "the end of the stopped one is noticed")
            drain(server, 8).check({1: 4, 2: 4})
        finally:
            os.kill(process.pid, signal.SIGCONT)

    def test_nothing_acknowledged_is_lost_where_ids_are_mixed_up(self, rig: Rig) -> None:
        server = rig.server(batch_size=10, num_buffers=64)
        ids = ["aa" * 16, "bb" * 16]
        acknowledged: dict[int, int] = {}

        def work(maker: int) -> None:
            try:
                client = rig.client(server, client_id=ids[maker % 2], name=f"maker-{maker}")
            except HandshakeRefused as error:
                assert error.code == "identity"
                return
            count = 0
            try:
                for number in range(40):
                    client.send(sample(maker, number))
                    count += 1
                client.wait()
                client.close()
            except EchoError:
                return
            acknowledged[maker] = count

        for batch in ([1, 2, 3, 4], [5, 6, 7, 8]):
            threads = [threading.Thread(target=work, args=(maker,)) for maker in batch]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(acknowledged) >= 4, "one for each id and round"
        drain(server, sum(acknowledged.values())).check(acknowledged)

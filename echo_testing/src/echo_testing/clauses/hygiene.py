"""Clauses about leaks: no thread, file descriptor or address is left behind."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from echo_core.base.errors import ClosedError
from echo_core.client.client import Client
from echo_core.server.server import Server

from ..processes import descriptors, returns, settled, tasks, until
from ..rig import PATIENCE, Rig
from ..samples import example, sample, stacked
from ..threads import ended, in_thread
from . import carrier

Needs = Callable[[str], None]


def leaves_nothing(visit: Callable[[], None], before: int, times: int) -> None:
    """Fail if `times` visits leave threads or descriptors. `before`: visits that come first, for what is made only once per process.

    A pool of threads that the whole process shares, such as gRPC's, may grow by a thread in a busy moment and keep it. It doesn't grow without
    end, so threads that are left count only if as many visits again leave some once more. Descriptors count at once."""
    for _ in range(before):
        visit()
    for last in (False, False, True):
        threads, files = tasks(), descriptors()
        for _ in range(times):
            visit()
        settled(descriptors, files, "descriptors")
        try:
            settled(tasks, threads, "threads")
        except AssertionError:
            if last:
                raise
        else:
            return


@carrier
class HygieneClauses:
    def dial(self, address: Any) -> socket.socket:
        """The connection of an unauthenticated client: a plain socket to the address."""
        if address.host:
            return socket.create_connection((address.host, address.port), timeout=PATIENCE)
        stranger = socket.socket(socket.AF_UNIX)
        stranger.settimeout(PATIENCE)
        stranger.connect(address.path)
        return stranger

    def _session(self, close: bool) -> None:
        """Run a learner and two workers, with every kind of message between them."""
        server = Server(example(), 8, self.transport()).start()
        clients = [Client(server.address, example(), **self.connect_options) for _ in range(2)]
        server.publish({"w": np.zeros(200_000)})
        for client in clients:
            client.send_batch(stacked(1, 0, 12))
            client.wait()
            client.weights()
            client.request("ping")
        kept = server.sample(timeout=PATIENCE).batch
        if close:
            for client in clients:
                client.close()
            server.close()
        del clients, client, server
        assert kept["number"].tolist() == list(range(8))

    @pytest.mark.parametrize("close", [True, False])
    def test_a_session_leaves_no_threads_and_no_descriptors(self, rig: Rig, close: bool) -> None:
        del rig

        def visit() -> None:
            self._session(close)
            gc.collect()

        leaves_nothing(visit, before=2, times=3)

    def test_clients_that_come_and_go_leave_nothing_at_the_learner(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=8)

        def visit() -> None:
            with rig.client(server) as client:
                client.send(sample(1, 0))
            assert server.sample(timeout=PATIENCE) is not None

        leaves_nothing(visit, before=3, times=20)
        until(lambda: server.peers() == [], "no client is left", PATIENCE)

    def test_refused_clients_leave_nothing(self, rig: Rig) -> None:
        server = rig.server()

        def visit() -> None:
            with pytest.raises(ValueError, match="filler"):
                rig.client(server, example(7))

        leaves_nothing(visit, before=3, times=10)

    def test_an_address_in_use_is_an_error_that_names_it(self, rig: Rig, needs: Needs) -> None:
        needs("exclusive")
        server = rig.server()
        where = str(server.address.port or server.address.path)
        with pytest.raises(OSError, match=where):
            rig.server(at=server.address)
        rig.client(server).send_batch(stacked(1, 0, 8))
        assert server.sample(timeout=PATIENCE) is not None

    def test_an_address_is_free_again_at_once(self, rig: Rig, needs: Needs) -> None:
        needs("restarts")
        address = rig.place()
        for _ in range(4):
            server = rig.server(at=address)
            with rig.client(server) as client:
                client.send_batch(stacked(1, 0, 8))
            assert server.sample(timeout=PATIENCE) is not None
            server.close()

    def test_closing_under_load_ends_every_call(self, rig: Rig) -> None:
        server = rig.server(batch_size=4)
        clients = [rig.hasty(server, timeout=1, max_inflight_msgs=50) for _ in range(3)]
        outcomes: list[Any] = []

        def work(client: Client) -> None:
            number = 0
            while True:
                client.send(sample(1, number))
                number += 1

        threads = [in_thread(lambda client=client: outcomes.append(returns(lambda: work(client), PATIENCE))) for client in clients]
        for _ in range(30):
            assert server.sample(timeout=PATIENCE) is not None
        closing = in_thread(returns, lambda: clients[0].close(timeout=0))  # it raises if something was not delivered yet
        assert returns(lambda: server.close(timeout=1), PATIENCE) is None
        ended(closing, *threads)
        assert len(outcomes) == 3
        for outcome in outcomes:
            assert isinstance(outcome, (ClosedError, ConnectionError, TimeoutError)), outcome

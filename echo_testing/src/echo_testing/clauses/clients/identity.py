"""Clauses about clients: their names, counters and requests, and the refusal of unauthenticated or surplus clients."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from echo_core.base.errors import (
    ConfigError,
    EchoError,
    EchoTimeoutError,
    HandshakeRefused,
    SecurityError,
)
from echo_core.client.client import Client
from echo_core.plugins import discovery
from echo_core.wire.peer import STATES
from echo_core.wire.protocol import PROTOCOL_VERSION
from echo_core.wire.transport import Listener, Transport

from ...processes import returns, until
from ...rig import PATIENCE, Rig, drain
from ...samples import example, sample, stacked
from ...threads import ended, in_thread
from .. import carrier

Needs = Callable[[str], None]

LISTENER_STATS = {
    "connections_total",
    "active_connections",
    "samples",
    "duplicates",
    "bytes_received",
    "bytes_sent",
    "refused",
    "protocol_errors",
}
CONNECTION_STATS = {
    "samples",
    "bytes_sent",
    "acknowledged",
    "unacknowledged",
    "reconnects",
    "learner_restarts",
    "connected",
    "weights_version",
    "send_blocked",
}


class IdentityClauses:
    @carrier
    def test_it_is_found_by_its_scheme(self) -> None:
        transport = self.transport()
        assert isinstance(transport, Transport)
        try:
            found = discovery.transport_class(transport.scheme)
        except EchoError as error:
            pytest.fail(f"install the plugin before its tests (pip install -e .): {error}")
        assert found is type(transport)

    def test_options_are_checked(self, rig: Rig) -> None:
        with pytest.raises(ConfigError, match="tiemout.*timeout"):
            self.transport(tiemout=3)
        server = rig.server()
        with pytest.raises(ConfigError, match="reconect.*reconnect"):
            rig.client(server, reconect=False)
        with pytest.raises(ConfigError, match="client_id must be 32 hex digits, not 'worker-1'"):
            rig.client(server, client_id="worker-1")
        with pytest.raises(ConfigError, match="silence must be from"):
            rig.client(server, silence=0)

    @carrier
    def test_addresses_are_text_too(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(str(server.address))
        client.send_batch(stacked(1, 0, 8))
        drain(server, 8).check({1: 8})
        assert server.address.scheme == self.transport().scheme

    def test_a_peer_shows_who_it_is_and_what_it_did(self, rig: Rig) -> None:
        server = rig.server()
        started = time.time()
        client = rig.client(server, name="ada")
        client.send_batch(stacked(1, 0, 8))
        client.wait()
        (peer,) = server.peers()
        assert (peer.name, peer.role, peer.pid) == ("ada", "worker", os.getpid())
        assert peer.samples == 8
        assert peer.bytes >= 8 * server.spec.sample_bytes
        assert len(peer.id) == 32 and int(peer.id, 16) >= 0
        assert started - 5 <= peer.connected_at <= time.time() + 1
        assert peer.state in STATES
        stats = server.stats()
        assert stats["store/active_connections"] == 1
        assert stats["worker/ada/samples"] == 8

    def test_workers_of_one_name_are_told_apart(self, rig: Rig) -> None:
        server = rig.server(batch_size=8, num_buffers=8)
        for count in (3, 5):
            client = rig.client(server, name="ada")
            client.send_batch(stacked(count, 0, count))
            client.wait()
        assert [peer.name for peer in server.peers()] == ["ada", "ada#2"]
        stats = server.stats()
        assert (stats["worker/ada/samples"], stats["worker/ada#2/samples"]) == (3, 5)

    def test_a_peer_without_a_name_has_one(self, rig: Rig) -> None:
        server = rig.server()
        with Client(server.address, example(), **self.connect_options):
            (peer,) = server.peers()
            assert str(os.getpid()) in peer.name

    def test_a_stalled_worker_shows_what_it_waits_for(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.client(server)
        client.send_batch(stacked(1, 0, 10))
        until(lambda: server.peers()[0].state == "waiting for space", "it waits for space")
        drain(server, 10).check({1: 10})
        client.wait()
        until(lambda: server.peers()[0].state in ("idle", "streaming"), "it waits no more")

    def test_both_ends_count(self, rig: Rig) -> None:
        server = rig.server(batch_size=8, num_buffers=8)
        client = rig.client(server)
        client.send_batch(stacked(1, 0, 40))
        client.wait()
        (listener,) = server._listeners
        assert isinstance(listener, Listener)
        stats = listener.stats()
        assert set(stats) >= LISTENER_STATS
        assert all(isinstance(value, (int, float)) for value in stats.values())
        assert (stats["samples"], stats["active_connections"], stats["duplicates"]) == (40, 1, 0)
        assert stats["bytes_received"] >= 40 * server.spec.sample_bytes
        mine = client.stats()
        assert set(mine) >= CONNECTION_STATS
        assert (mine["samples"], mine["connected"], mine["reconnects"]) == (40, True, 0)
        assert mine["bytes_sent"] >= 40 * server.spec.sample_bytes

    def test_requests_are_answered(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)
        blob = os.urandom(900_000)
        asked = time.time()
        body, echoed = client.request("ping", {"some": ["thing", 1.5, None]}, blob)
        assert echoed == blob and asked - 1 <= body["time"] <= time.time() + 1
        stats = client.server_stats()
        assert stats["store/batch_size"] == 8
        with pytest.raises(EchoError, match="no operation 'make tea'"):
            client.request("make tea")
        assert client.request("ping")[1] == b""

    @carrier
    def test_an_observer_looks_on(self, rig: Rig) -> None:
        """An observer sends requests, as `echoctl top` and `tap` do. It sends no samples, and does not disturb clients that do."""
        server = rig.server()
        client = rig.client(server)
        observer = rig.client(server, role="observer")
        client.send_batch(stacked(0, 0, 8))
        assert observer.server_stats()["store/batch_size"] == 8
        assert [peer.role for peer in server.peers()] == ["worker", "observer"]
        with pytest.raises(EchoError, match="observer"):
            observer.send(sample(1, 0))
        observer.close()
        client.send_batch(stacked(0, 8, 8))
        drain(server, 16).check({0: 16})

    @carrier
    def test_large_requests_travel_in_pieces_and_large_messages_are_refused(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)
        large = os.urandom(3 << 20)
        assert client.request("ping", blob=large)[1] == large
        with pytest.raises((EchoError, ValueError)):
            client._connection.request("ping", {}, bytes(2 << 20))
        assert client.request("ping", blob=b"small")[1] == b"small"

    def test_requests_under_way_together_find_their_answers(self, rig: Rig) -> None:
        """The order of the waits does not matter, and a request that nobody waits for does not disturb the others."""
        client = rig.client(rig.server())
        connection = client._connection
        blobs = [os.urandom(size) for size in (0, 1, 1000, 200_000, 900_000, 900_001, 3)]
        pending = [connection.ask("ping", {}, blob) for blob in blobs]
        connection.ask("ping", {}, b"nobody waits")
        for answer, blob in sorted(zip(pending, blobs, strict=True), key=lambda pair: pair[1]):
            assert answer(PATIENCE)[1] == blob
        with pytest.raises(EchoError, match="no operation 'make tea'"):
            connection.ask("make tea", {})(PATIENCE)
        assert client.request("ping", blob=b"after")[1] == b"after"

    def test_requests_of_many_threads_find_their_answers(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)
        wrong: list[Any] = []

        def ask(thread: int) -> None:
            for turn in range(50):
                blob = f"{thread}:{turn}".encode()
                if client.request("ping", blob=blob)[1] != blob:
                    wrong.append(blob)

        ended(*[in_thread(ask, i) for i in range(4)])
        assert wrong == []

    # ---- refused clients ----------------------------------------------------------------

    @carrier
    def test_a_wrong_token_is_refused(self, rig: Rig, needs: Needs) -> None:
        needs("authenticates")
        server = rig.server()
        for options in ({"token": "a-token-of-somebody-else-entirely"}, {"auth": False}):
            outcome = returns(lambda o=options: rig.client(server, **o), PATIENCE)
            assert isinstance(outcome, SecurityError), outcome
        assert server.peers() == []
        assert server.stats()["store/samples_inserted_total"] == 0
        rig.client(server).send_batch(stacked(1, 0, 8))
        drain(server, 8).check({1: 8})

    def test_a_client_with_a_token_does_not_trust_who_asks_for_none(
        self, rig: Rig, needs: Needs
    ) -> None:
        needs("authenticates")
        server = rig.server(listen={"auth": False})
        outcome = returns(lambda: rig.client(server), PATIENCE)
        assert isinstance(outcome, SecurityError), outcome
        for options in ({"auth": False}, {"allow_unauthenticated": True}):
            with rig.client(server, **options) as client:
                client.send_batch(stacked(1, 0, 8))
            drain(server, 8).check({1: 8})

    def test_one_client_too_many_is_refused(self, rig: Rig) -> None:
        server = rig.server(listen={"max_connections": 2})
        first, second = rig.client(server), rig.client(server)
        outcome = returns(lambda: rig.client(server, timeout=3), PATIENCE)
        # The client may keep trying, in case another one leaves.
        assert isinstance(outcome, (HandshakeRefused, EchoTimeoutError)), outcome
        assert "busy" in str(outcome) or getattr(outcome, "code", "") == "busy"
        second.close()
        until(lambda: len(server.peers()) == 1, "one has left")
        rig.client(server).send_batch(stacked(1, 0, 4))
        first.send_batch(stacked(2, 0, 4))
        drain(server, 8).check({1: 4, 2: 4})

    @carrier
    @pytest.mark.parametrize("junk", ["silence", "noise", "half a greeting", "a huge length"])
    def test_strangers_disturb_nobody(self, rig: Rig, needs: Needs, junk: str) -> None:
        needs("dialable")
        server = rig.server()
        client = rig.client(server)
        hello = b"ECHO" + bytes((PROTOCOL_VERSION, 1, 0, 0))
        text = {
            "silence": b"",
            "noise": os.urandom(5000),
            "half a greeting": hello + b"\x80\0\0\0{\"client\"",
            "a huge length": hello + b"\xff\xff\xff\xff" + b"x" * 5000,
        }[junk]
        strangers = [self.dial(server.address) for _ in range(5)]
        for stranger in strangers:
            with suppress(OSError):
                stranger.sendall(text)
        client.send_batch(stacked(1, 0, 16))
        rig.client(server).send_batch(stacked(2, 0, 16))
        drain(server, 32).check({1: 16, 2: 16})
        assert len(server.peers()) == 2
        for stranger in strangers:
            stranger.close()

"""Clauses about paths that fail without a sign: links that stall."""

from __future__ import annotations

from collections.abc import Callable

from ..processes import SLOWER, until
from ..rig import Rig, drain
from ..rig_roles import Linked, each_role
from ..samples import stacked
from . import carrier

Needs = Callable[[str], None]

SILENCE = 1.5 * SLOWER  # seconds: longer than a busy machine keeps a thread waiting


class SilenceClauses:
    @carrier
    def test_a_stalled_path_is_left(self, rig: Rig, needs: Needs) -> None:
        needs("relayable")
        server = rig.server(batch_size=8, num_buffers=8, listen={"silence": SILENCE})
        with self.relay(server) as relay:
            client = rig.client(self.through(relay, server), silence=SILENCE)
            client.send_batch(stacked(1, 0, 8))
            client.wait()
            relay.stall()
            client.send_batch(stacked(1, 8, 8))
            client.wait()
            assert client.stats()["reconnects"] >= 1
            drain(server, 16).check({1: 16})
            client.close()

    @carrier
    @each_role
    def test_a_stalled_path_is_noticed_by_an_idle_client(self, rig: Rig, needs: Needs, role: str) -> None:
        needs("relayable")
        server = rig.server(listen={"silence": SILENCE})
        with self.relay(server) as relay:
            linked = Linked(rig, role, self.through(relay, server), silence=SILENCE, name="idle")
            relay.stall()
            until(lambda: linked.stats()["reconnects"] >= 1, "it has left the stalled path")
            until(lambda: [peer.name for peer in server.peers()] == ["idle"], "the learner has ended the old connection")
            linked.use(server)
            linked.client.close()

    def test_an_idle_link_is_no_silence(self, rig: Rig) -> None:
        server = rig.server(listen={"silence": SILENCE})
        clients = [rig.client(server, silence=silence) for silence in (SILENCE, 20 * SILENCE)]  # the ends may have different options
        rig.pause(3 * SILENCE)
        assert [client.stats()["reconnects"] for client in clients] == [0, 0]
        assert server.stats()["store/active_connections"] == 2

    def test_a_full_store_is_no_silence(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=2, listen={"silence": SILENCE})
        client = rig.client(server, silence=SILENCE)
        client.send_batch(stacked(1, 0, 8))
        until(lambda: server.peers()[0].state == "waiting for space", "it waits for space")
        rig.pause(3 * SILENCE)
        assert client.stats()["reconnects"] == 0
        drain(server, 8).check({1: 8})
        client.wait()

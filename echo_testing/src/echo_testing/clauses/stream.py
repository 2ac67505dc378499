"""Clauses about a path that treats bytes badly: it adds, damages or divides them, or takes only a few of them at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ..processes import returns, until
from ..rig import PATIENCE, Rig, drain
from ..rig_roles import Linked, each_role
from ..samples import FILLER, Tally, example, stacked
from . import carrier

Needs = Callable[[str], None]

HELD_SECONDS = 0.2  # in which writes fill every buffer on the way


@carrier
class StreamClauses:
    def test_bytes_that_nobody_sent_end_the_link_and_lose_nothing(self, rig: Rig, needs: Needs) -> None:
        needs("relayable")
        server = rig.server(batch_size=8, num_buffers=8)
        with self.relay(server) as relay:
            client = rig.client(self.through(relay, server))
            client.send_batch(stacked(1, 0, 8))
            client.wait()
            relay.inject(b"\xff" * 64)
            until(lambda: client.stats()["reconnects"] == 1, "the link was ended")
            client.send_batch(stacked(1, 8, 8))
            client.wait()
            drain(server, 16).check({1: 16})
            client.close()

    def test_bytes_that_come_in_crumbs_are_put_together(self, rig: Rig, needs: Needs) -> None:
        needs("relayable")
        server = rig.server(batch_size=8, num_buffers=8)
        with self.relay(server) as relay:
            relay.crumbs = True
            client = rig.client(self.through(relay, server))
            server.publish({"w": stacked(1, 0, 4)["number"]})
            client.send_batch(stacked(1, 0, 8, FILLER))
            client.wait()
            assert client.weights().params["w"].tolist() == stacked(1, 0, 4)["number"].tolist()
            drain(server, 8).check({1: 8})
            client.close()

    def test_damaged_bytes_reach_no_store(self, rig: Rig, needs: Needs) -> None:
        needs("relayable")
        needs("damage_proof")
        filler = 10_000
        server = rig.server(example(filler), batch_size=8, num_buffers=16)
        tally = Tally()
        with self.relay(server) as relay:
            client = rig.client(self.through(relay, server), example(filler))
            spots = [("up", 6_000), ("up", 40_001), ("up", 77_777), ("down", 6_000), ("down", 99_999)]  # behind the handshake
            for number, (way, at) in enumerate(spots):
                relay.cut(way, at)
                server.publish({"w": np.full(100_000, number, np.uint8)})
                client.send_batch(stacked(1, 8 * number, 8, filler))
                client.wait()
                drain(server, 8 * (number + 1), tally).check({1: 8 * (number + 1)})
                assert (client.weights(newer_than=number).params["w"] == number).all()
                until(lambda number=number: relay.damaged == number + 1, "a byte was damaged")
            client.close()

    @each_role
    def test_weights_that_are_damaged_on_the_way_come_again(self, rig: Rig, needs: Needs, role: str) -> None:
        """Also where no checksum covers every byte: weights have a digest, and the client goes on after a link that broke the protocol."""
        needs("relayable")
        server = rig.server()
        with self.relay(server) as relay:
            linked = Linked(rig, role, self.through(relay, server))
            linked.use(server)
            for number, at in enumerate((100_000, 300_000), 1):  # behind the handshake, in the weights that come first
                relay.cut("down", at)
                linked.use(server)
                assert relay.damaged == number and linked.stats()["reconnects"] == 2 * number
            linked.client.close()

    def test_short_writes_lose_nothing(self, rig: Rig, needs: Needs) -> None:
        """Both ends can write only a part of what they have to write, again and again, and at first nothing at all."""
        needs("relayable")
        filler, rounds = 150_000, 3
        server = rig.server(example(filler), batch_size=4, num_buffers=4 * rounds)
        with self.relay(server) as relay:
            relay.narrow()
            client = rig.client(self.through(relay, server), example(filler))
            for number in range(rounds):
                weights = np.arange(number, number + 400_000, dtype=np.int32)
                asked = weights.tobytes()[:900_000]
                answers: list[Any] = []
                request = threading.Thread(
                    target=lambda asked=asked, answers=answers: answers.append(returns(lambda: client.request("ping", blob=asked)[1] == asked, PATIENCE))
                )
                relay.hold()
                server.publish({"w": weights})
                client.send_batch(stacked(1, 4 * number, 4, filler))
                request.start()
                rig.pause(HELD_SECONDS)
                relay.release()
                assert (client.weights(newer_than=number).params["w"] == weights).all()
                request.join(PATIENCE)
                assert answers == [True]
                client.wait()
            drain(server, 4 * rounds).check({1: 4 * rounds})
            assert client.stats()["reconnects"] == 0, "a message was not written whole"
            client.close()

"""Clauses about servers that pass the weights of a learner on: numbers and digests stay, a restarted learner counts anew, receipts add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echo_core.base.errors import ConfigError, EchoTimeoutError
from echo_core.server.server import Server

from ...processes import until
from ...rig import Rig, drain
from ...rig_roles import Linked, each_role
from ...samples import sample
from .. import carrier
from .publishing import BIG, check, filled


def relay_of(rig: Rig, source: Server, **options: Any) -> Server:
    return rig.server(weights_from=rig.source(source), **options)


class RelayClauses:
    @carrier
    def test_a_relay_passes_on_each_version_with_its_number_and_digest(self, rig: Rig) -> None:
        learner = rig.server()
        relay = relay_of(rig, learner)
        client = rig.client(relay)
        for version, size in ((3, 400), (4, BIG), (9, 0)):
            published = learner.publish(filled(version, size), version=version)
            weights = client.weights(newer_than=version - 1)
            check(weights, size)
            assert (weights.version, weights.digest) == published == (version, published.digest)
        assert learner.publish(filled(10)).version == 10
        check(client.weights(newer_than=9))
        with pytest.raises(ConfigError, match="weights_from"):
            relay.publish(filled(11))

    def test_who_comes_late_gets_the_newest_from_a_relay_of_a_relay(self, rig: Rig) -> None:
        learner = rig.server()
        published = learner.publish(filled(1))
        second = relay_of(rig, relay_of(rig, learner))
        weights = rig.client(second).weights()
        check(weights)
        assert (weights.version, weights.digest) == published

    @each_role
    @pytest.mark.parametrize("number", [1, 7])
    def test_a_learner_that_was_started_again_counts_anew_behind_a_relay(self, rig: Rig, number: int, role: str) -> None:
        where = rig.place()
        learner = rig.server(at=where)
        relay = relay_of(rig, learner)
        client, other = Linked(rig, role, relay).client, rig.client(relay)
        learner.publish(filled(7), version=7)
        check(client.weights())
        assert other.weights().learner == client.weights().learner
        learner.close(restarting=True)
        again = rig.server(at=where)
        published = again.publish({**filled(number), "new": 1}, version=number)
        for one in (client, other):
            weights = one.weights(newer_than=7)
            assert (weights.version, weights.digest) == published
            assert weights.params["new"] == 1
        again.publish(filled(number + 1))
        check(client.weights(newer_than=number))

    @each_role
    def test_a_relay_that_was_started_again_tells_nothing_old_as_new(self, rig: Rig, role: str) -> None:
        learner, where = rig.server(), rig.place()
        relay = relay_of(rig, learner, at=where)
        linked = Linked(rig, role, relay)
        client = linked.client
        learner.publish(filled(1))
        check(client.weights())
        relay.close()
        rig.server(at=where, weights_from=rig.source(learner))
        until(lambda: linked.stats()["reconnects"] > 0 and linked.stats()["weights_received"] > 1, "the weights come again")
        with pytest.raises(EchoTimeoutError):
            client.weights(timeout=0.2, newer_than=1)
        learner.publish(filled(2))
        weights = client.weights(newer_than=1)
        check(weights)
        assert weights.version == 2

    def test_receipts_go_up_added_together(self, rig: Rig) -> None:
        learner = rig.server()
        first, second = relay_of(rig, learner), relay_of(rig, learner)
        below = relay_of(rig, second)
        clients = [rig.client(server) for server in (learner, first, first, below, below, below)]
        published = learner.publish(filled(1))
        for client in clients:
            check(client.weights())
        until(lambda: learner.receipts() == {published: 6}, "all receipts have come")
        stats = learner.stats()
        assert stats["weights/holders"] == stats["weights/holders_of_newest"] == 6
        assert sorted(value for key, value in stats.items() if key.startswith("relay/") and key.endswith("/holders")) == [2, 3]
        below.close()
        until(lambda: learner.receipts() == {published: 3}, "those of a relay that is gone do not count")

    @carrier
    def test_a_client_takes_weights_from_elsewhere_than_it_sends_to(self, rig: Rig) -> None:
        learner = rig.server()
        relay = relay_of(rig, learner, tree={"other": np.zeros(2)})  # the relay's spec does not matter
        client = rig.client(learner, weights=rig.source(relay))
        published = learner.publish(filled(1))
        weights = client.weights()
        check(weights)
        assert (weights.version, weights.digest) == published
        assert client.stats()["weights_version"] == 1 == client.policy_version
        for number in range(8):
            client.send(sample(1, number))
        drain(learner, 8).check({1: 8})
        until(lambda: learner.receipts() == {published: 1}, "the receipt has come by way of the relay")

    def test_relays_in_a_circle_are_named(self, rig: Rig) -> None:
        where = rig.place()
        second = rig.server(weights_from=rig.source(where))
        circle = (second, rig.server(at=where, weights_from=rig.source(second)))
        until(lambda: any("would take its own weights" in str(one.stats()["weights/source_error"]) for one in circle), "one of them has noticed")

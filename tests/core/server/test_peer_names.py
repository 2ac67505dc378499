"""What a server calls its clients, and how many workers it counts, as connections come and go."""

from __future__ import annotations

import numpy as np

from echo_core import Server
from echo_core.plugins.hookspecs import hookimpl
from echo_core.wire.peer import Peer


def peer(number: int, name: str = "worker", role: str = "worker") -> Peer:
    return Peer(f"{number:032x}", name, "somewhere", role, pid=number, host="here")


def test_names_are_given_once_and_again_when_they_are_free() -> None:
    left: list[str] = []

    class Observer:
        @hookimpl
        def echo_peer_lost(self, peer: Peer, reason: str) -> None:
            left.append(peer.name)

    with Server({"x": np.zeros(2)}, 1, observers=[Observer()]) as server:

        def arrive(one: Peer) -> Peer:
            server._peer_connected(one)
            return one

        def workers() -> object:
            return server.stats()["store/active_connections"]

        first, second, third, observer = arrive(peer(1)), arrive(peer(2)), arrive(peer(3)), arrive(peer(4, role="observer"))
        assert [one.name for one in (first, second, third, observer)] == ["worker", "worker#2", "worker#3", "worker#4"]
        again = arrive(peer(2))  # another connection of the second worker
        assert again.name == "worker#2" and workers() == 3
        server._peer_lost(second, "")
        assert workers() == 3 and not left
        server._peer_lost(again, "")
        assert workers() == 2 and left == ["worker#2"]
        server._peer_lost(again, "")  # twice does nothing to others
        assert workers() == 2
        assert arrive(peer(5)).name == "worker#2" and workers() == 3
        server._peer_lost(observer, "")
        assert workers() == 3 and {one.name for one in server.peers()} == {"worker", "worker#2", "worker#3"}

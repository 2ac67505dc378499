"""`Server(observers=[...])` and `Server.add_stats`: what others learn of a server, and what they add to its figures."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from echo_core import Server, hookimpl
from echo_core.base.errors import ConfigError, PluginError
from echo_core.server.sink import ServerSink
from echo_core.wire.peer import Peer

pytestmark = pytest.mark.needs("echo-samplers")

EXAMPLE = {"x": np.zeros(2, np.float32)}


class Watch:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    @hookimpl
    def echo_peer_connected(self, peer: Peer) -> None:
        self.seen.append(("came", peer.name))

    @hookimpl
    def echo_peer_lost(self, peer: Peer, reason: str) -> None:
        self.seen.append((reason, peer.name))


class Unfit:
    @hookimpl
    def echo_peer_lost(self, peer: Peer) -> None:
        raise ValueError("this one fails")


class Unknown:
    @hookimpl
    def echo_peer_won(self, peer: Peer) -> None: ...


def test_observers_of_one_server(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    with Server(EXAMPLE, 4, observers=[Unfit(), watch]) as server, Server(EXAMPLE, 4) as other:
        for one in (server, other):
            sink, peer = ServerSink(one), Peer(id="0" * 32, name="w", address="here")
            sink.connected(peer)
            sink.lost(peer, "it died")
    assert watch.seen == [("came", "w"), ("it died", "w")]
    assert "failed in echo_peer_lost" in caplog.text


@pytest.mark.parametrize(
    ("observers", "error", "why"),
    [([Unknown()], PluginError, "echo_peer_won"), (Watch(), ConfigError, r"write observers=\[...\]"), ("watch", ConfigError, "must be a list")],
)
def test_observers_that_are_not_valid(observers: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        Server(EXAMPLE, 4, observers=observers)


def test_figures_of_others_are_shown_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    figures: dict[str, Any] = {"epoch": 3, "reward": np.float32(1.5), "who": "me", "tasks_total": np.int64(7), "samples": 2, "done": True}
    with Server(EXAMPLE, 4) as server:
        server.add_stats("es", lambda: figures)
        server.add_stats("broken", lambda: {"x": figures["nothing"]})
        with caplog.at_level(logging.ERROR, "echo"):
            stats = server.stats()
            again = server.stats()
        assert {key: value for key, value in stats.items() if key.startswith("es/")} == {
            "es/epoch": 3, "es/reward": 1.5, "es/who": "me", "es/tasks_total": 7, "es/samples": 2, "es/done": 1,
        }  # fmt: skip
        assert [type(stats[f"es/{name}"]) for name in ("reward", "tasks_total", "done")] == [float, int, int]
        assert "store/samples" in again and not any(key.startswith("broken/") for key in stats)
        assert caplog.text.count("figures of 'broken'") == 1, "they are asked for every second"


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, object()])
def test_a_figure_that_is_neither_a_number_nor_text_is_named(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    with Server(EXAMPLE, 4) as server:
        server.add_stats("es", lambda: {"odd": value})
        assert "es/odd" not in server.stats()
    assert "the figure 'odd' must be a number or text" in caplog.text


@pytest.mark.parametrize(
    ("prefix", "function", "why"),
    [
        ("store", dict, "belongs to Echo's own"),
        ("build", dict, "belongs to Echo's own"),
        ("a/b", dict, "not 'a/b'"),
        ("Big", dict, "not 'Big'"),
        ("", dict, "not ''"),
        (3, dict, "not 3"),
        ("es", None, "must come from a function"),
        ("taken", dict, "'taken' already"),
    ],
)
def test_prefixes_that_are_not_valid(prefix: Any, function: Any, why: str) -> None:
    with Server(EXAMPLE, 4) as server:
        server.add_stats("taken", dict)
        with pytest.raises(ConfigError, match=why):
            server.add_stats(prefix, function)

"""`Server.serve`: what may be served, who may ask, and what a handler may return."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

import numpy as np
import pytest

from echo_core import Later, Server
from echo_core.base.errors import ClosedError, ConfigError, EchoError, SecurityError
from echo_core.server.sink import ServerSink
from echo_core.wire.peer import Peer
from echo_core.wire.protocol import parse_reply

pytestmark = pytest.mark.needs("echo-samplers")


@pytest.fixture
def server() -> Any:
    with Server({"x": np.zeros(2, np.float32)}, 4) as server:
        yield server


def connected(server: Server, *roles: str) -> tuple[ServerSink, Peer]:
    sink, peer = ServerSink(server), Peer(id="0" * 32, name="w", address="here", permissions=frozenset(roles or ("write",)))
    sink.connected(peer)
    return sink, peer


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("stats", print), "'plugin/operation', not 'stats'"),
        (("/x", print), "'plugin/operation', not '/x'"),
        (("x/", print), "'plugin/operation', not 'x/'"),
        ((7, print), "'plugin/operation', not 7"),
        (("a/b", None), "the handler of 'a/b' must be callable"),
        (("a/taken", print), "an operation 'a/taken' already"),
    ],
)
def test_what_cannot_be_served(server: Server, arguments: Any, why: str) -> None:
    server.serve("a/taken", print)
    with pytest.raises(ConfigError, match=why):
        server.serve(*arguments)


@pytest.mark.parametrize(("roles", "why"), [(("boss",), "'boss'"), ("write", r"roles=\('write',\)"), (3, "roles of 'a/b'")])
def test_roles_that_are_not_valid(server: Server, roles: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        server.serve("a/b", print, roles=roles)


def test_each_server_has_operations_of_its_own(server: Server) -> None:
    server.serve("a/b", lambda server, peer, body, blob: ({"n": server.batch_size}, blob))
    sink, peer = connected(server)
    assert sink.request(peer, "a/b", {}, b"x") == ({"n": 4}, b"x")
    with Server({"x": np.zeros(2, np.float32)}, 4) as other:
        elsewhere, somebody = connected(other)
        with pytest.raises(EchoError, match="no operation 'a/b'"):
            elsewhere.request(somebody, "a/b", {}, b"")


class Desk:
    def answer(self, server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Any:
        return {}, b""


@pytest.mark.parametrize(
    ("roles", "served"),
    [(("write",), {"write", "admin"}), (("read", "write"), {"read", "write", "admin"}), ((), {"admin"})],
)
def test_the_roles_that_may_ask(server: Server, roles: tuple[str, ...], served: set[str]) -> None:
    server.serve("a/b", Desk().answer, roles=roles)
    for role in ("read", "write", "admin"):
        sink, peer = connected(server, role)
        if role in served:
            assert sink.request(peer, "a/b", {}, b"") == ({}, b"")
        else:
            with pytest.raises(SecurityError, match="operation 'a/b' needs a token for"):
                sink.request(peer, "a/b", {}, b"")


@pytest.mark.parametrize("given", [None, {}, ({},), ([], b""), "text"])
def test_a_handler_that_returns_something_else_is_named(server: Server, given: Any) -> None:
    server.serve("a/b", lambda *_: given)
    sink, peer = connected(server)
    with pytest.raises(TypeError, match="handler of 'a/b' returned"):
        sink.request(peer, "a/b", {}, b"")


def test_a_body_may_have_any_keys(server: Server) -> None:
    """Echo's own operations say by "wait" that a table is full; for an operation of others the word means nothing."""
    server.serve("a/b", lambda server, peer, body, blob: (body, blob))
    sink, peer = connected(server)
    assert sink.request(peer, "a/b", {"wait": 1}, b"") == ({"wait": 1}, b"")


def test_an_answer_that_json_cannot_carry_leaves_the_request_parked(server: Server) -> None:
    kept: list[Later] = []
    server.serve("a/b", lambda server, peer, body, blob: kept.append(Later()) or kept[-1])  # type: ignore[func-returns-value]
    sink, peer = connected(server)
    sent: list[Any] = []
    later = sink.request(peer, "a/b", {}, b"")
    assert isinstance(later, Later) and later.peer is peer
    later.send_to(lambda payload: sent.append(parse_reply(b"".join(payload))[0]))
    with pytest.raises(TypeError, match="must be a dict"):
        later("text")  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError)):
        later({"x": object()})
    assert not later.over and server.stats()["clients/parked"] == 1
    assert later({"x": 1}) and sent == [{"x": 1}]
    assert later.over and not later.fail("no")


def test_one_later_answers_one_request(server: Server) -> None:
    one = Later()
    server.serve("a/b", lambda *_: one)
    sink, peer = connected(server)
    assert sink.request(peer, "a/b", {}, b"") is one
    with pytest.raises(EchoError, match="belongs to another request"):
        sink.request(peer, "a/b", {}, b"")
    assert server.stats()["clients/parked"] == 1


def test_a_transport_that_cannot_send_later_waits(server: Server) -> None:
    server.serve("a/b", lambda server, peer, body, blob: waiting.append(Later(peer)) or waiting[-1])  # type: ignore[func-returns-value]
    server.serve("a/drop", lambda server, peer, body, blob: Later(peer))
    waiting: list[Later] = []
    sink, peer = connected(server)
    threading.Timer(0.05, lambda: waiting[0]({"n": 1}, b"late")).start()
    body, blob = sink.control(peer, "a/b", {}, b"")
    assert (body, bytes(blob)) == ({"n": 1}, b"late")  # type: ignore[arg-type]
    with pytest.raises(EchoError, match="no answer was given"):
        sink.control(peer, "a/drop", {}, b"")
    threading.Timer(0.05, lambda: sink.lost(peer, "gone")).start()
    with pytest.raises(EchoError, match="has left"):
        sink.control(peer, "a/b", {}, b"")


def test_a_request_of_a_client_that_has_left_is_not_kept(server: Server) -> None:
    told: list[int] = []

    def ask(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Later:
        later = Later(peer)
        later.on_gone(lambda: told.append(1))
        sink.lost(peer, "it left while its request was carried out")
        return later

    server.serve("a/b", ask)
    sink, peer = connected(server)
    later = sink.request(peer, "a/b", {}, b"")
    assert isinstance(later, Later) and later.over and told == [1]
    assert server.stats()["clients/parked"] == 0


def test_a_callback_that_fails_harms_nobody(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []
    server.serve("a/b", lambda server, peer, body, blob: Later(peer))
    sink, peer = connected(server)
    later = sink.request(peer, "a/b", {}, b"")
    assert isinstance(later, Later)
    later.on_gone(lambda: {}["x"])
    later.on_gone(lambda: told.append(1))
    with caplog.at_level(logging.ERROR, "echo"):
        sink.lost(peer, "")
    assert told == [1] and "on_gone" in caplog.text


def test_a_closed_server_parks_nothing(server: Server) -> None:
    server.serve("a/b", lambda server, peer, body, blob: Later(peer))
    sink, peer = connected(server)
    server.close()
    sent: list[bytes] = []
    later = sink.request(peer, "a/b", {}, b"")
    assert isinstance(later, Later)
    later.send_to(lambda payload: sent.append(b"".join(payload)))
    with pytest.raises(ClosedError):
        parse_reply(sent[0])


def test_an_unanswered_later_does_not_keep_a_dropped_server() -> None:
    kept: list[Later] = []
    server = Server({"x": np.zeros(2, np.float32)}, 4)
    server.serve("a/b", lambda server, peer, body, blob: kept.append(Later(peer)) or kept[-1])  # type: ignore[func-returns-value]
    sink, peer = connected(server)
    sink.request(peer, "a/b", {}, b"")
    was = sink._server
    del server
    gc.collect()
    assert was() is None
    assert not kept[0]({})


@pytest.mark.parametrize("options", [{"max_parked": 0}, {"max_parked_per_client": "many"}])
def test_limits_that_are_not_valid(options: Any) -> None:
    with pytest.raises(ConfigError, match="must be a whole number, at least 1"):
        Server({"x": np.zeros(2, np.float32)}, 4, **options)

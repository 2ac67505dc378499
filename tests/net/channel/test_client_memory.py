"""What clients make a learner hold: incomplete frames, and versions of the weights that they do not read."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import numpy as np
import pytest
from local_net import SPEC, TOKEN, Consumer, connect, net, serve

from echo_core import Server
from echo_core.base.memory import client_memory
from echo_core.wire.protocol import Kind, frame, pack_header
from echo_net.handshake import ClientHandshake
from echo_testing.processes import until
from echo_testing.samples import stacked

pytestmark = pytest.mark.needs("echo-samplers")


def stranger(role: str = "worker") -> socket.socket:
    """A client after its handshake."""
    sock = net.dial("learner")
    sock.settimeout(20)
    handshake = ClientHandshake(SPEC, TOKEN, role=role)
    sock.sendall(handshake.start())
    while not handshake.done:
        sock.sendall(handshake.receive(sock.recv(4096)))
    return sock


def pinned(server: Server) -> set[int]:
    """The versions that are on their way to clients."""
    return {client.pinned.version for client in server._listeners[0].serving() if client.pinned is not None}  # type: ignore[attr-defined]


def test_an_acceptor_may_raise_anything() -> None:
    net.accepting += [ValueError("something odd"), KeyError("more of it")]
    with serve() as server, connect() as connection:
        connection.send_batch(stacked(0, 0, 2))
        assert server.sample(10) is not None


def test_incomplete_frames_wait_for_room_and_the_oldest_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_memory, "STALLED_SECONDS", 0.5)
    count = (256 << 10) // SPEC.sample_bytes
    length = count * SPEC.sample_bytes
    with ExitStack() as stack:
        server = stack.enter_context(serve(batch_size=64, client_memory=4 * length))
        for _ in range(5):
            sock = stack.enter_context(stranger())
            sock.sendall(pack_header(Kind.DATA, count=count, seq=1, length=length))
            sock.sendall(bytes(100))
        until(lambda: server.stats()["clients/held_bytes"] == 2 * length, "two frames have room")
        until(lambda: server.stats()["clients/cut_off_total"] >= 2, "the first are cut off")
        assert server.stats()["clients/held_bytes"] <= 2 * length
        with connect() as honest:
            consumer = Consumer(server)
            for _ in range(2):
                honest.send_batch(stacked(0, honest.stats()["samples"], count), timeout=30)
            honest.wait(60)
            consumer.check({0: 2 * count})


def test_readers_of_old_weights_are_cut_off_beyond_the_budget() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serve(client_memory=10 << 20))
        for version in range(1, 9):
            server.publish({"w": np.full(4 << 20, version, np.uint8)})
            stack.enter_context(stranger("observer")).sendall(frame(Kind.SUBSCRIBE, seq=0))
            until(lambda v=version: v in pinned(server), "it is being sent")
        server.publish({"w": np.zeros(4 << 20, np.uint8)})
        until(lambda: len(server.peers()) == 2, "two old versions have room in the budget")
        assert server.stats()["clients/cut_off_total"] == 6

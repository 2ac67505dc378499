"""Over TCP: the rights of a token's roles, rotated tokens, and a client that sends samples although it may not."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from echo_core import Client, EchoError, Server
from echo_core.base.errors import SecurityError
from echo_core.security.tokens import needs
from echo_core.wire.protocol import Kind, pack_header
from echo_net.handshake import ClientHandshake
from echo_tcp.transport import TcpTransport

EXAMPLE = {"x": np.zeros(4, np.float32)}
TOKENS = ["the-key-of-everything", "write:the-key-of-workers", "read:the-key-of-readers"]


class Extended(Server):
    """A server with operations of every kind."""

    _operations: ClassVar = {
        **Server._operations,
        "sample_replay": needs("read")(lambda server, peer, body, blob: ({"rows": 3}, b"")),
        "stop": lambda server, peer, body, blob: ({"stopped": True}, b""),
    }


@pytest.fixture(params=["tcp", "tcps"])
def server(request: pytest.FixtureRequest):
    with Extended(EXAMPLE, 2, f"{request.param}://127.0.0.1:0", token=TOKENS, num_buffers=8) as server:
        yield server


def test_each_role_has_what_it_needs_and_no_more(server: Server) -> None:
    with Client(server.address, EXAMPLE, token="the-key-of-workers") as worker:
        worker.send({"x": np.ones(4, np.float32)})
        worker.wait()
        server.publish({"w": np.ones(3)})
        assert worker.weights(10).version == 1
        assert worker.server_stats()["store/samples_inserted_total"] == 1
        for operation in ("sample_replay", "stop"):
            with pytest.raises(SecurityError, match=f"'{operation}' needs a token for .*yours is for write"):
                worker.request(operation)
    with pytest.raises(SecurityError, match="a worker needs a token for write, this one is for read"):
        Client(server.address, EXAMPLE, token="the-key-of-readers", timeout=20)
    with Client(server.address, EXAMPLE, token="the-key-of-readers", role="observer") as reader:
        assert reader.request("sample_replay")[0] == {"rows": 3}
        assert reader.weights(10).version == 1
        with pytest.raises(SecurityError, match="needs a token for admin"):
            reader.request("stop")
        for call in (reader.send, reader.send_batch):
            with pytest.raises(SecurityError, match="sends no experience"):
                call({"x": np.ones(4, np.float32)})
        assert reader.stats()["samples"] == reader.stats()["unacknowledged"] == 0
        (peer,) = [peer for peer in server.peers() if peer.role == "observer"]
        assert peer.permissions == {"read"}
    with Client(server.address, EXAMPLE, token="the-key-of-everything") as boss:
        boss.send({"x": np.ones(4, np.float32)})
        assert boss.request("stop")[0] == {"stopped": True}
    assert server.sample(10).info.samples_inserted_total == 2


@pytest.mark.parametrize("first", [1, 2, (1 << 62), (1 << 63) - 3])
def test_an_observer_that_sends_samples_all_the_same_inserts_none(first: int, serve, eventually) -> None:
    import socket

    with serve(EXAMPLE, token="read:the-key-of-readers") as server:
        handshake = ClientHandshake(server.spec, b"the-key-of-readers", "ab" * 16, role="observer")
        with socket.create_connection(server.address.endpoint, timeout=20) as sock:
            sock.sendall(handshake.start())
            while not handshake.done:
                sock.sendall(handshake.receive(sock.recv(65536)))
            sock.sendall(pack_header(Kind.DATA, count=2, seq=first, length=32) + bytes(32))
            (listener,) = server._listeners
            eventually(lambda: listener.stats()["protocol_errors"] == 1 and not server.peers())
        assert server.stats()["store/samples_inserted_total"] == 0


def test_tokens_are_rotated_while_everything_runs(tmp_path: Path) -> None:
    path = tmp_path / "token"

    def hold(*tokens: str) -> None:
        path.write_text("\n".join(tokens))
        path.chmod(0o600)

    def connect(token: str) -> Client:
        return Client(server.address, EXAMPLE, token=token, timeout=20)

    old, new = "the-old-key-long-enough", "the-new-key-long-enough"
    hold(old)
    with Server(EXAMPLE, 2, TcpTransport(port=0), token=path) as server, connect(old) as early:
        with pytest.raises(SecurityError):
            connect(new)
        hold(new, old)  # both tokens are valid while workers change to the new one
        with connect(old), connect(new):
            pass
        hold(new)
        with pytest.raises(SecurityError), connect(old):
            pass
        with connect(new) as late:
            for client in (early, late):  # connected workers stay connected
                client.send({"x": np.ones(4, np.float32)})
                client.wait()


def test_an_unusable_operation_is_no_secret(server: Server) -> None:
    with Client(server.address, EXAMPLE, token="the-key-of-workers") as worker, pytest.raises(EchoError, match="no operation 'x'"):
        worker.request("x")


def test_an_observer_cannot_pass_for_a_workers_session(serve) -> None:
    """With a worker's id, it could make the learner take the worker's samples for duplicates."""
    with serve(EXAMPLE, token=None) as server:
        identity = "cd" * 16
        with Client(server.address, EXAMPLE, client_id=identity) as worker:
            with Client(server.address, EXAMPLE, client_id=identity, role="observer") as observer:
                observer.request("ping")
                for _ in range(4):
                    worker.send({"x": np.ones(4, np.float32)})
                worker.wait()
            assert worker.stats()["reconnects"] == 0
        assert server.sample(10).info.samples_inserted_total == 4

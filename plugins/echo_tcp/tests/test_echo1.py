"""The original wire format: workers of the original Echo, unchanged, against today's learner."""

from __future__ import annotations

import logging
import socket
import struct
import threading

import numpy as np
import pytest

from echo_core import Server
from echo_core.base.errors import SpecError
from echo_net.handshake import ClientHandshake
from echo_tcp.transport import TcpClient, TcpTransport

original = pytest.importorskip("echo", reason="the original Echo is not installed: uv pip install id-echo")

EXAMPLE = {"obs": np.zeros((3, 4), np.float32), "reward": np.zeros((), np.float64)}
LARGE = {"image": np.zeros((300, 400), np.uint8), "reward": np.zeros(1, np.float32)}


def serve(example=EXAMPLE, batch_size=4, **options):
    return Server(example, batch_size, TcpTransport(port=0, protocol="echo1", **options))


def test_what_the_learner_says_first():
    with serve() as server, socket.create_connection(server.address.endpoint, timeout=20) as sock:
        said = sock.makefile("rb").read(9 + 16 + 8)
        assert said == b"ECHO\x01" + struct.pack("<I", 2) + struct.pack("<IIII", 4, 2, 3, 4) + struct.pack("<II", 8, 0)


@pytest.mark.parametrize("example", [EXAMPLE, LARGE], ids=["small", "large"])
def test_the_original_client(example, eventually):
    with serve(example, batch_size=10) as server:
        client = original.TcpClient("127.0.0.1", server.port, example, max_inflight_msgs=32)
        samples = [{key: np.full_like(leaf, n) for key, leaf in example.items()} for n in range(100)]

        def send():
            for sample in samples:
                client.send(sample)
            client.wait()

        sender = threading.Thread(target=send)
        sender.start()
        for start in range(0, 100, 10):
            batch = server.sample(10).batch
            for key in example:
                assert (batch[key].reshape(10, -1).astype(int) == np.arange(start, start + 10)[:, None]).all()
        sender.join()
        assert server.peers()[0].samples == 100
        client.close()
        eventually(lambda: not server.peers())


def test_the_normal_end_of_an_original_client_is_no_warning(eventually, caplog):
    caplog.set_level(logging.INFO, "echo")
    with serve() as server:
        client = original.TcpClient("127.0.0.1", server.port, EXAMPLE)
        client.send(EXAMPLE)
        client.wait()
        client.close()
        eventually(lambda: not server.peers())
        left = [record for record in caplog.records if "left" in record.getMessage()]
        assert [(record.levelno, record.getMessage().partition(" left")[2]) for record in left] == [(logging.INFO, "")]


def test_an_original_client_that_goes_in_the_middle_of_a_sample_is_a_warning(eventually, caplog):
    caplog.set_level(logging.INFO, "echo")
    with serve() as server, socket.create_connection(server.address.endpoint, timeout=20) as sock:
        sock.sendall(b"\1" * (server.spec.sample_bytes + 9))
        eventually(lambda: server.stats()["store/samples"] == 1)
        sock.shutdown(socket.SHUT_WR)
        eventually(lambda: not server.peers())
        (left,) = [record for record in caplog.records if "left" in record.getMessage()]
        assert left.levelno == logging.WARNING and "in the middle of a message" in left.getMessage()


def test_several_original_clients_at_once():
    with serve(batch_size=5) as server:
        clients = [original.TcpClient("127.0.0.1", server.port, EXAMPLE) for _ in range(8)]

        def send(number, client):
            for n in range(50):
                client.send({"obs": np.full((3, 4), n, np.float32), "reward": np.array(1000.0 * number + n)})
            client.wait()

        senders = [threading.Thread(target=send, args=pair) for pair in enumerate(clients)]
        for sender in senders:
            sender.start()
        seen = []
        for _ in range(80):
            batch = server.sample(20).batch
            assert (batch["obs"][:, 0, 0] == batch["reward"] % 1000).all()
            seen += batch["reward"].tolist()
        for sender in senders:
            sender.join()
        assert sorted(seen) == sorted(1000.0 * w + n for w in range(8) for n in range(50))
        for client in clients:
            client.close()


def test_what_was_sent_before_a_rude_end_is_taken(eventually):
    """The original client closes with unread acknowledgements, which resets the connection."""
    with serve(batch_size=1) as server:
        for round_ in range(10):
            client = original.TcpClient("127.0.0.1", server.port, EXAMPLE)
            client.send({"obs": np.zeros((3, 4), np.float32), "reward": np.array(float(round_))})
            assert server.sample(10).batch["reward"][0] == round_
            client.close()
        eventually(lambda: not server.peers())


def test_waiting_for_space_and_hanging_up(eventually):
    with serve(batch_size=2) as server:  # room for 6
        sock = socket.create_connection(server.address.endpoint, timeout=20)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.recv(1000)
        for n in range(20):
            sock.sendall(np.zeros(12, np.float32).tobytes() + np.float64(n).tobytes())
        eventually(lambda: [p for p in server.peers() if p.state == "waiting for space"])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()  # a reset, while 14 samples wait
        rewards = [r for _ in range(10) for r in server.sample(10).batch["reward"].tolist()]
        assert rewards == list(range(20))
        eventually(lambda: not server.peers())


def test_the_wrong_protocol_at_either_end_is_told():
    with serve() as server:
        with socket.create_connection(server.address.endpoint, timeout=20) as sock:
            sock.sendall(ClientHandshake(server.spec, b"0123456789abcdef").start())
            while sock.recv(1000):
                pass
        assert server.stats()["store/samples_inserted_total"] == 0
        assert server.stats()["transport/tcp/protocol_errors"] == 1
    today = TcpTransport(port=0, handshake_timeout=0.3)
    with Server(EXAMPLE, 4, today) as server, pytest.raises(ConnectionError):
        original.TcpClient("127.0.0.1", server.port, EXAMPLE)


HELLO = ClientHandshake(Server(EXAMPLE, 4).spec, b"0123456789abcdef").start()
LIKE_A_HELLO = [HELLO[:n] for n in (1, 4, 7, 8, 12, 13)]
LIKE_A_HELLO += [HELLO[:8] + b"tail", HELLO[:12] + b"[1]", b"ECHO\x01\x01\0\0", b"ECHO\x02\x07\0\0"]


@pytest.mark.parametrize("end", ["waits", "hangs up", "learner closes"])
@pytest.mark.parametrize("data", LIKE_A_HELLO, ids=repr)
def test_a_first_sample_that_looks_like_the_beginning_of_a_hello(data, end, eventually):
    with serve(np.zeros(len(data), np.uint8), batch_size=1) as server:
        with socket.create_connection(server.address.endpoint, timeout=20) as sock:
            sock.recv(1000)
            sock.sendall(data)
            if end == "waits":
                assert sock.recv(1) == b"\x01"
            elif end == "learner closes":
                eventually(lambda: server.peers() and server.peers()[0].bytes == len(data))
                server.close()
        assert server.sample(10).batch.tobytes() == data


def test_first_samples_that_spell_a_hello_byte_by_byte(eventually):
    with serve(np.zeros((), np.uint8), batch_size=len(HELLO[:12])) as server:
        with socket.create_connection(server.address.endpoint, timeout=20) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.recv(1000)
            for n in range(12):
                sock.sendall(HELLO[n : n + 1])
                eventually(lambda n=n: server.peers() and server.peers()[0].bytes == n + 1)
            assert sock.recv(12, socket.MSG_WAITALL) == b"\x01" * 12
        assert server.sample(10).batch.tobytes() == HELLO[:12]


@pytest.mark.parametrize("hangs_up", [False, True])
def test_a_first_sample_that_looks_like_a_hello_waits_for_space(hangs_up, eventually):
    with serve(np.zeros(4, np.uint8), batch_size=1) as server:  # room for 3
        for _ in range(3):
            server.submit(np.zeros(4, np.uint8))
        with socket.create_connection(server.address.endpoint, timeout=20) as sock:
            sock.recv(1000)
            sock.sendall(HELLO[:4])
            if hangs_up:
                sock.shutdown(socket.SHUT_WR)
            eventually(lambda: [p for p in server.peers() if p.state == "waiting for space"])
            batches = [server.sample(10).batch.tobytes() for _ in range(4)]
            assert batches == [bytes(4)] * 3 + [HELLO[:4]]
            assert sock.recv(1) == b"\x01"
        eventually(lambda: not server.peers())


@pytest.mark.parametrize("version", [2, 3, 200])
@pytest.mark.parametrize("cut", [0, 1, 5, 13])
def test_a_hello_that_comes_in_pieces_is_no_sample(version, cut, eventually):
    hello = HELLO[:4] + bytes((version,)) + HELLO[5:]
    with serve(np.zeros((), np.uint8), batch_size=1) as server:
        with socket.create_connection(server.address.endpoint, timeout=20) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.recv(1000)
            if cut:
                sock.sendall(hello[:cut])
                eventually(lambda: server.peers() and server.peers()[0].bytes == cut)
            sock.sendall(hello[cut:])
            while sock.recv(1000):
                pass
        assert server.stats()["store/samples_inserted_total"] == 0
        assert server.stats()["transport/tcp/protocol_errors"] == 1


def test_samples_of_no_bytes_cannot_travel():
    with pytest.raises(SpecError, match="without any bytes"):
        serve({"nothing": np.zeros((0,))}).start()


@pytest.mark.parametrize("dtype", [">f4", ">u8", ">c8", ">U3", ">M8[s]", [("a", "<f4"), ("b", ">i2")]], ids=str)
def test_a_byte_order_that_the_protocol_cannot_say_is_refused_at_both_ends(dtype):
    example = {"fine": np.zeros(3, "u1"), "other": np.zeros(4, dtype)}
    with pytest.raises(SpecError, match=r"leaf 'other'.*byte order.*newbyteorder"):
        serve(example).start()
    native = {"fine": np.zeros(3, "u1"), "other": np.zeros(4, np.dtype(dtype).newbyteorder("="))}
    with serve(native) as server, pytest.raises(SpecError, match=r"leaf 'other'.*byte order.*newbyteorder"):
        TcpClient("127.0.0.1", server.port, example, protocol="echo1")


def test_values_of_another_byte_order_are_converted_to_the_examples():
    example = {"a": np.zeros(2, np.float32)}
    with serve(example, batch_size=1) as server, TcpClient("127.0.0.1", server.port, example, protocol="echo1") as client:
        client.send({"a": np.array([1, 2], ">f4")})
        assert server.sample(10).batch["a"].tolist() == [[1, 2]]


def test_close_says_goodbye_by_hanging_up(eventually):
    server = serve()
    server.start()
    client = original.TcpClient("127.0.0.1", server.port, EXAMPLE)
    server.close()
    eventually(client._closed.is_set)
    client.close()

"""The learner's end and samples: which samples arrive, which are recognised as duplicates, and which worker waits."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.base.errors import HandshakeRefused
from echo_core.plugins.hookspecs import hookimpl
from echo_core.wire.protocol import Kind, frame, pack_header, pack_request, parse_reply
from echo_tcp.transport import TcpTransport

SMALL = {"x": np.zeros(4, np.float32), "y": np.zeros((), np.int64)}
LARGE = {"image": np.zeros((100, 200), np.int32), "y": np.zeros(3, np.int64)}  # 80,024 bytes


def values(sample):
    """The values with which all leaves of a batch's samples were filled."""
    leaves = [leaf.reshape(len(leaf), -1) for leaf in sample.batch.values()]
    for leaf in leaves:
        assert (leaf == leaves[-1][:, :1]).all(), "a sample was torn"
    return leaves[-1][:, 0].tolist()


def taken(server, batches):
    """The values of the next samples, `batches` batches of them."""
    return [value for _ in range(batches) for value in values(server.sample(10))]


@pytest.mark.parametrize("example", [SMALL, LARGE], ids=["small", "large"])
def test_frames_of_any_size_in_any_portions(example, dial, serve):
    with serve(example, batch_size=4, num_buffers=8) as server:
        worker = dial(server)
        assert worker.resumed_at == 0
        frames = b"".join(worker.data(range(a, b)) for a, b in [(0, 1), (1, 3), (3, 14), (14, 15), (15, 24)])
        for start in range(0, len(frames), 7001):  # headers and leaves are cut anywhere
            worker.sock.sendall(frames[start : start + 7001])
        worker.acknowledged(24)
        assert taken(server, 6) == list(range(24))
        peer = server.peers()[0]
        assert (peer.id, peer.samples, peer.role) == (worker.client, 24, "worker")
        assert peer.bytes == len(frames)
        assert server.stats()["store/active_connections"] == 1


def test_a_frame_larger_than_the_whole_store(dial, serve):
    with serve(LARGE, batch_size=2, num_buffers=2) as server:
        worker = dial(server)
        worker.send(range(31))
        assert taken(server, 15) == list(range(30))
        worker.acknowledged(31)


def test_acknowledgements_say_how_many_workers_send(dial, serve):
    with serve(SMALL, batch_size=4, num_buffers=64) as server:
        workers = [dial(server) for _ in range(4)]
        said = {0}
        deadline = time.monotonic() + 20
        while max(said) < 3 and time.monotonic() < deadline:
            for worker in workers[:3]:  # the fourth is silent
                worker.send([0.0] * 4)
                while (header := worker.expect(Kind.ACK)[0]).seq < worker.next - 1:
                    pass
                said.add(header.count)
            server.sample(12)
            time.sleep(0.005)
        assert max(said) == 3
        while header.count != 1 and time.monotonic() < deadline:
            workers[0].send([0.0] * 4)
            header = workers[0].expect(Kind.ACK)[0]
            server.sample(4)
            time.sleep(0.005)
        assert header.count == 1


def test_samples_without_any_bytes(dial, serve):
    with serve({"nothing": np.zeros((0, 3))}) as server:
        worker = dial(server)
        worker.sock.sendall(pack_header(Kind.DATA, count=5, seq=1))
        worker.acknowledged(5)
        assert server.sample(10).batch["nothing"].shape == (4, 0, 3)


@pytest.mark.parametrize("example", [SMALL, LARGE], ids=["small", "large"])
def test_nothing_arrives_twice(example, dial, eventually, serve):
    with serve(example, batch_size=5) as server:
        first = dial(server)
        first.send(range(3))
        first.acknowledged(3)
        first.close(reset=True)
        eventually(lambda: not server.peers())
        again = dial(server, first.client)
        assert again.resumed_at == 3
        again.send(range(3), first=1)  # all samples are known
        again.send(range(2, 7), first=3)  # one of them is known
        again.acknowledged(7)
        again.send(range(7, 10))
        assert taken(server, 2) == list(range(10))
        assert server.stats()["transport/tcp/duplicates"] == 4
        assert server.peers()[0].samples == 10


def test_a_stranger_goes_on_where_it_says(dial, serve):
    with serve(SMALL) as server:  # a new learner, and a worker of the previous learner
        worker = dial(server, base=1000)
        assert worker.resumed_at == 1000
        worker.send([7, 8, 9, 10])
        worker.acknowledged(1004)
        assert values(server.sample(10)) == [7, 8, 9, 10]


def test_a_new_connection_takes_the_place_of_the_old_one(dial, serve):
    with serve(LARGE) as server:
        old = dial(server)
        old.send([0, 1])
        old.acknowledged(2)
        old.sock.sendall(old.data([2])[:50_000])  # half of it lies in a slot
        new = dial(server, old.client)
        assert new.resumed_at == 2
        with pytest.raises((EOFError, ConnectionError)):
            old.receive()
        new.send([2, 3])
        assert values(server.sample(10)) == [0, 1, 2, 3]
        assert len(server.peers()) == 1


def test_a_client_whose_connection_is_just_being_announced_can_be_asked_for_a_sign_of_life(dial):
    """Another client with the same id may come before the first is served. That must not end the first connection, nor let the newcomer in."""
    announced, asked = threading.Event(), threading.Event()

    class Observer:
        @hookimpl
        def echo_peer_connected(self, peer):
            if not announced.is_set():
                announced.set()
                asked.wait(10)

    transports = [TcpTransport(port=0), TcpTransport(port=0)]  # each has a control thread of its own, and one of them is held up
    with Server(SMALL, 4, transports) as server:
        server._observers.register(Observer())
        first, second = server.addresses
        with ThreadPoolExecutor(2) as pool:
            holder = pool.submit(Client, first, SMALL, client_id="ab" * 16)
            assert announced.wait(10)
            newcomer = pool.submit(Client, second, SMALL, client_id="ab" * 16)
            with pytest.raises(HandshakeRefused, match="is in use by"):
                newcomer.result(20)
            asked.set()
            with holder.result(20) as client:
                client.send({"x": np.ones(4, np.float32), "y": np.int64(7)})
                client.wait(10)
                assert client.stats()["reconnects"] == 0
            assert server.stats()["transport/tcp/connections_total"] == 1


def test_half_a_frame_held_for_ever_holds_up_nobody(dial, eventually, serve):
    with serve(LARGE, batch_size=4) as server:
        slow, quick = dial(server), dial(server)
        held = slow.data([100, 101, 102])
        slow.sock.sendall(held[:170_000])
        eventually(lambda: server.stats()["transport/tcp/evicted_total"] == 1)
        quick.send(range(8))
        assert taken(server, 2) == list(range(8))
        states = eventually(lambda: [p.state for p in server.peers() if p.id == slow.client and p.state != "streaming"])
        assert states == ["half a message"]
        slow.sock.sendall(held[170_000:])
        slow.acknowledged(3)
        quick.send([8])
        assert sorted(values(server.sample(10))) == [8, 100, 101, 102]
        assert server.stats()["transport/tcp/staged_bytes"] == 0


def test_a_full_store_holds_back_those_who_fill_it(dial, eventually, serve):
    with serve(SMALL, batch_size=4, num_buffers=2) as server:
        worker, other = dial(server), dial(server)
        worker.send(range(20))
        worker.acknowledged(8)
        assert eventually(lambda: [p for p in server.peers() if p.state == "waiting for space"])[0].id == worker.client
        assert server.stats()["transport/tcp/waiting_for_space"] == 1
        assert server.stats()["store/queue_depth_sum"] == 12
        other.sock.sendall(frame(Kind.PING, seq=5))  # others are served all the same
        assert other.expect(Kind.PING)[0].seq == 5
        other.send(range(100, 104))
        assert sorted(taken(server, 6)) == [*range(20), *range(100, 104)]
        worker.acknowledged(20)
        eventually(lambda: server.stats()["store/queue_depth_sum"] == 0)
        assert server.stats()["transport/tcp/waiting_for_space"] == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_500_equal_workers_get_equal_shares_of_a_full_store(threads, dial, serve):
    example = {"worker": np.zeros((), np.int64)}
    with serve(example, batch_size=50, num_buffers=3, num_threads=threads) as server:
        workers = [dial(server) for _ in range(500)]
        for number, worker in enumerate(workers):
            worker.send(np.full(400, number))
        for _ in range(3):  # samples that the first workers put there before the crowd came
            server.sample(10)
        shares = Counter()
        for _ in range(2000):  # half of what was sent
            shares.update(server.sample(10).batch["worker"].tolist())
        assert len(shares) == 500
        assert max(shares.values()) <= 2 * min(shares.values())


def test_many_threads_and_a_client_is_always_served_by_the_same(dial, serve):
    with serve(SMALL, batch_size=10, num_threads=3) as server:
        workers = [dial(server) for _ in range(12)]
        for round_ in range(5):
            for number, worker in enumerate(workers):
                worker.send(range(100 * number + 2 * round_, 100 * number + 2 * round_ + 2))
        seen = taken(server, 12)
        assert sorted(seen) == [100 * n + i for n in range(12) for i in range(10)]
        for worker in workers:
            worker.acknowledged(10)
            assert dial(server, worker.client).resumed_at == 10


@pytest.mark.parametrize("full_to_the_brim", [False, True], ids=["room", "no room"])
def test_the_end_of_one_who_waits_for_space_is_noticed(full_to_the_brim, dial, eventually, serve):
    """The learner does not read from this worker. Without room, the worker's kernel cannot even report that it is gone."""
    with serve(LARGE, batch_size=2, num_buffers=2) as server:
        worker = dial(server)
        worker.send(range(4))
        worker.acknowledged(4)
        worker.sock.setblocking(False)
        frame_ = worker.data(range(4, 8))
        try:
            while worker.sock.send(frame_) and full_to_the_brim:
                pass
        except BlockingIOError:
            pass
        eventually(lambda: [p for p in server.peers() if p.state == "waiting for space"])
        worker.close()
        eventually(lambda: not server.peers())
        assert values(server.sample(10)) == [0, 1]


def test_the_other_direction_may_end_first(dial, eventually, serve):
    with serve(SMALL) as server:
        worker = dial(server)
        worker.sock.sendall(worker.data(range(4)) + frame(Kind.BYE, b"that was all"))
        worker.sock.shutdown(socket.SHUT_WR)
        worker.acknowledged(4)
        assert worker.sock.recv(1) == b""
        eventually(lambda: not server.peers())
        half = dial(server)
        half.sock.sendall(half.data(range(4)))
        half.sock.shutdown(socket.SHUT_WR)
        half.acknowledged(4)


def test_close_commits_what_has_arrived_and_says_goodbye(dial, port):
    server = Server(SMALL, 4, TcpTransport(port=port), num_buffers=8).start()
    worker, idle = dial(server), dial(server)
    worker.send(range(8))
    time.sleep(0.05)  # it has arrived, but perhaps was not read yet
    address = server.address
    server.close()
    worker.acknowledged(8)
    assert worker.farewell() == idle.farewell() == "the learner has ended the job"
    assert taken(server, 2) == list(range(8))
    assert server.sample(10) is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address.endpoint, timeout=5)
    with Server(SMALL, 4, TcpTransport(port=address.port)) as again:  # and the port is free
        assert again.port == address.port


def test_close_does_not_wait_for_one_who_does_not_listen(dial, serve):
    with serve(SMALL, batch_size=4, num_buffers=2) as server:
        deaf = dial(server)
        deaf.subscribe()
        server.publish({"w": np.zeros(4_000_000)})
        deaf.send(range(100))
        server.close(timeout=0.2)
        with pytest.raises((EOFError, ConnectionError)):  # perhaps in the middle of a version
            while True:
                deaf.receive()


def test_a_sample_alone_arrives_alone(dial, serve):
    with serve(SMALL, batch_size=1) as server:
        worker = dial(server)
        for value in range(50):
            worker.send([value])
            assert values(server.sample(10)) == [value]
            worker.acknowledged(value + 1)
        latency = server.stats()
        assert latency["latency/ingest_round_count"] >= 50
        assert latency["latency/copy_count"] >= 0


def test_requests_are_answered_in_words_and_bytes(dial, serve):
    with serve(SMALL) as server:
        worker = dial(server)
        worker.sock.sendall(frame(Kind.CONTROL, pack_request("ping", {}, b"blob"), seq=9))
        header, payload = worker.expect(Kind.CONTROL)
        assert (header.seq, header.flags) == (9, 1)
        assert parse_reply(payload)[1] == b"blob"
        for number in range(100):  # more requests than the learner takes without an answer
            worker.sock.sendall(frame(Kind.CONTROL, pack_request("stats", {}), seq=number))
        for number in range(100):
            header, payload = worker.expect(Kind.CONTROL)
            assert header.seq == number
            assert parse_reply(payload)[0]["transport/tcp/active_connections"] == 1
        large = b"\xab" * 900_000
        worker.sock.sendall(frame(Kind.CONTROL, pack_request("ping", {}, large), seq=1))
        assert parse_reply(worker.expect(Kind.CONTROL)[1])[1] == large
        worker.sock.sendall(frame(Kind.CONTROL, pack_request("no such thing", {}), seq=2))
        with pytest.raises(Exception, match="no operation 'no such thing'"):
            parse_reply(worker.expect(Kind.CONTROL)[1])
        worker.sock.sendall(frame(Kind.CONTROL, struct.pack("<I", 3) + b"[1]", seq=2))
        assert "object" in worker.farewell()

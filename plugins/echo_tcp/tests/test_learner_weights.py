"""The learner's end and weights: workers get the latest version as a whole, and weights never delay samples."""

from __future__ import annotations

import numpy as np
import pytest

from echo_core.wire.protocol import U32, U64, Kind, frame
from echo_core.wire.weights import pack, unpack

EXAMPLE = {"y": np.zeros((), np.int64)}


@pytest.fixture
def server(serve):
    with serve(EXAMPLE) as server:
        yield server


def confirm(worker, version, digest=0):
    worker.sock.sendall(frame(Kind.RECEIPT, U64.pack(digest), seq=version))


def read(whole):
    """The tree that the bytes of a version hold."""
    (meta,) = U32.unpack_from(whole)
    return unpack(whole[4 : 4 + meta], whole[4 + meta :])


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
def test_versions_of_any_size_arrive_whole(server, dial, size):
    early, late = dial(server), dial(server)
    early.subscribe()
    published = server.publish({"w": np.arange(size, dtype=np.float64), "step": 3})
    late.subscribe()
    for worker in (early, late):
        version, whole = worker.version()
        weights = read(whole)
        assert version == weights.version == published.version == 1
        assert weights.digest == published.digest
        assert (weights.params["w"] == np.arange(size)).all()
        assert weights.params["step"] == 3


def test_the_next_version_comes_after_the_receipt_and_is_the_newest(server, dial, eventually):
    worker = dial(server)
    worker.subscribe()
    digests = [server.publish({"w": np.full(10, n)}).digest for n in range(1, 6)]
    version, _ = worker.version()
    assert 1 <= version <= 5
    for n in range(6, 10):
        digests.append(server.publish({"w": np.full(10, n)}).digest)
    worker.send([1])  # nothing but the acknowledgement comes before the receipt
    worker.acknowledged(1)
    confirm(worker, version, digests[version - 1])
    assert worker.version()[0] == 9
    confirm(worker, 9, digests[8])
    peer = eventually(lambda: [p for p in server.peers() if p.weights_version == 9])[0]
    assert peer.weights_digest == digests[8]
    assert server.stats()["transport/tcp/weights_sent"] == 2


def waits_for_space(server):
    return server.stats()["transport/tcp/waiting_for_space"] == 1


def test_a_worker_whose_samples_wait_gets_the_next_version_without_a_receipt(server, dial, eventually):
    worker = dial(server)
    worker.subscribe()
    worker.send(range(16))  # the store has room for 12
    eventually(lambda: waits_for_space(server))
    digests = []
    for n in range(1, 6):
        digests.append(server.publish({"w": np.full(10, n)}).digest)
        version, whole = worker.version()
        assert version == n and (read(whole).params["w"] == n).all()
    for version in (1, 3, 5):  # a worker confirms no version that a newer one has replaced
        confirm(worker, version, digests[version - 1])
    for _ in range(4):
        server.sample(10)
    eventually(lambda: server.peers()[0].weights_version == 5)
    assert server.peers()[0].weights_digest == digests[4]
    server.publish({"w": np.full(10, 6)})
    assert worker.version()[0] == 6
    confirm(worker, 7)
    assert "receipt for weights 7, which were not sent" in worker.farewell()


def test_a_worker_that_reads_nothing_while_its_samples_wait_is_sent_no_heap_of_versions(server, dial, eventually):
    deaf, busy = dial(server), dial(server)
    deaf.subscribe()
    deaf.send(range(16))
    eventually(lambda: waits_for_space(server))
    busy.subscribe()
    for n in range(1, 51):
        server.publish({"w": np.full(1_000_000, n)})  # 8 MB each, more than the buffers of one connection
        version, _ = busy.version()
        assert version == n
        confirm(busy, version)
    assert server.stats()["transport/tcp/weights_sent"] <= 50 + 1
    versions = []
    while not versions or versions[-1] != 50:
        version, whole = deaf.version()
        assert (read(whole).params["w"] == version).all()
        versions.append(version)
    assert len(versions) <= 3


def test_who_holds_the_newest_is_sent_nothing(server, dial):
    for n in range(3):
        server.publish({"w": np.full(10, n)})
    worker = dial(server)
    worker.subscribe(held=3)
    worker.send([1])
    worker.acknowledged(1)
    assert server.peers()[0].weights_version == 3
    server.publish({"w": np.full(10, 4)})
    assert worker.version()[0] == 4


def test_a_worker_that_does_not_read_holds_up_nothing(server, dial):
    deaf, busy = dial(server), dial(server)
    deaf.subscribe()
    for n in range(20):
        server.publish({"w": np.full(500_000, n)})  # 4 MB each
        busy.send(range(4 * n, 4 * n + 4))
        assert server.sample(10).batch["y"].tolist() == list(range(4 * n, 4 * n + 4))
    busy.acknowledged(80)
    version, whole = deaf.version()
    assert (read(whole).params["w"] == version - 1).all()
    confirm(deaf, version)
    assert deaf.version()[0] == 20


def test_one_worker_sends_and_receives_at_the_same_time(server, dial):
    worker = dial(server)
    worker.subscribe()
    server.publish({"w": np.zeros(1_000_000)})
    for n in range(50):
        worker.send(range(4 * n, 4 * n + 4))
        assert server.sample(10).batch["y"].tolist() == list(range(4 * n, 4 * n + 4))
    assert worker.version()[0] == 1


def test_a_digest_that_differs_is_told(server, dial, eventually, caplog):
    worker = dial(server)
    worker.subscribe()
    server.publish({"w": np.zeros(3)})
    version, _ = worker.version()
    confirm(worker, version, 12345)
    eventually(lambda: "digest" in caplog.text)


@pytest.mark.parametrize("number", [6, 7])
def test_what_was_published_last_is_the_newest_also_if_another_learner_counted(server, dial, number):
    listener = server._listeners[0]
    listener.publish(pack({"w": np.zeros(3)}, 7))
    before = dial(server)
    before.subscribe()
    confirm(before, before.version()[0])
    listener.publish(pack({"w": np.ones(3)}, number))
    assert before.version()[0] == number
    worker = dial(server)
    worker.subscribe(held=7)
    assert worker.version()[0] == number

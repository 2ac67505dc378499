"""Samples arrive whole, once and in order, whatever their shape and however many send."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from local_net import SPEC, Consumer, connect, serve

from echo_core.base.errors import SpecError
from echo_core.server.server import Server
from echo_core.spec.spec import Spec
from echo_net.channel.connection import ChannelConnection
from echo_net.channel.fair_lock import FairLock
from echo_net.channel.served import TURN_ROWS
from echo_testing.processes import until
from echo_testing.samples import Tally, assert_same, example, random_like, rich_example, sample, stacked

pytestmark = pytest.mark.needs("echo-samplers")


def test_every_kind_of_leaf_arrives_with_its_bits() -> None:
    tree = rich_example()
    spec = Spec.from_example(tree)
    with serve(tree, batch_size=5) as server, connect(spec) as connection:
        samples = [random_like(tree, seed) for seed in range(5)]
        for one in samples:
            connection.send(one)
        got = server.sample(10).batch
        for i, one in enumerate(samples):
            assert_same(spec.treedef.unflatten([leaf[i] for leaf in spec.treedef.flatten_up_to(got)]), one)
        batch = random_like(tree, 9, (5,))
        connection.send_batch(batch)
        assert_same(server.sample(10).batch, batch)


def test_samples_without_any_bytes() -> None:
    empty = {"nothing": np.zeros((0, 3), np.float32)}
    with serve(empty) as server, connect(Spec.from_example(empty)) as connection:
        connection.send(empty)
        connection.send_batch({"nothing": np.zeros((3, 0, 3), np.float32)})
        for _ in range(2):
            assert server.sample(10).batch["nothing"].shape == (2, 0, 3)


@pytest.mark.parametrize("filler", [1, 3000, 300_000])
def test_a_flood_arrives_whole_and_in_order(filler: int) -> None:
    count = min(20_000, 30_000_000 // filler)
    spec = Spec.from_example(example(filler))
    with serve(example(filler), batch_size=10) as server:
        consumer = Consumer(server)
        with connect(spec, window_bytes=8 << 20) as connection:
            for i in range(count):
                if i % 100 == 50:
                    connection.send_batch(stacked(0, i, 50, filler))
                elif not 50 < i % 100 < 100:
                    connection.send(sample(0, i, filler))
        assert connection.stats()["acknowledged"] == count
        consumer.check({0: count})


def test_a_batch_larger_than_a_frame_or_the_window_is_taken_whole() -> None:
    with serve(batch_size=1000) as server:
        consumer = Consumer(server)
        with connect(window_bytes=10_000, max_inflight_msgs=7) as connection:
            connection.send_batch(stacked(0, 0, 150_000))
            connection.send_batch(stacked(0, 150_000, 10))
            connection.send_batch(stacked(0, 0, 0))
            connection.send_batch(stacked(0, 150_010, 990))
        consumer.check({0: 151_000})


def test_close_delivers_what_was_sent_just_before() -> None:
    with serve(batch_size=100) as server:
        for maker in range(5):
            with connect() as connection:
                for i in range(20):
                    connection.send(sample(maker, i))
        tally = Tally()
        tally.add(server.sample(10).batch)
        tally.check(dict.fromkeys(range(5), 20))
        until(lambda: not server.peers(), "every worker is seen to leave")


def test_flush_hands_over_and_wait_waits_for_the_commit() -> None:
    with serve(batch_size=4) as server, connect() as connection:
        for i in range(4):
            connection.send(sample(0, i))
        connection.flush()
        until(lambda: connection.stats()["bytes_sent"] >= 4 * SPEC.sample_bytes, "they are sent")
        connection.wait()
        assert server.stats()["store/samples_inserted_total"] == 4
        stats = connection.stats()
        assert (stats["samples"], stats["acknowledged"], stats["unacknowledged"]) == (4, 4, 0)


def test_the_arrays_may_be_changed_as_soon_as_send_returns() -> None:
    with serve(batch_size=300) as server, connect() as connection:
        one = sample(0, 0)
        for i in range(300):
            one["number"][...] = i
            one["filler"][...] = sample(0, i)["filler"]
            connection.send(one)
        one["filler"][...] = 0
        tally = Tally()
        tally.add(server.sample(10).batch)
        tally.check({0: 300})


def test_many_threads_on_one_connection() -> None:
    with serve(batch_size=50) as server:
        consumer = Consumer(server)
        with connect(max_inflight_msgs=20) as connection:

            def work(maker: int) -> None:
                for i in range(500):
                    connection.send(sample(maker, i))
                    if i % 100 == 0:
                        connection.flush()
                        connection.wait()

            threads = [threading.Thread(target=work, args=(maker,)) for maker in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        consumer.check(dict.fromkeys(range(6), 500))


def test_the_samples_of_each_of_many_workers_stay_in_order() -> None:
    with serve(batch_size=20) as server:
        consumer = Consumer(server)

        def work(maker: int) -> None:
            with connect(name=f"w{maker}") as connection:
                for i in range(0, 1500, 3):
                    connection.send(sample(maker, i))
                    connection.send_batch(stacked(maker, i + 1, 2))

        threads = [threading.Thread(target=work, args=(maker,)) for maker in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        consumer.check(dict.fromkeys(range(5), 1500))


def test_equal_workers_of_a_full_store_get_equal_shares() -> None:
    """Each has far more under way than the store holds, in frames larger than the store. A turn is TURN_ROWS samples, however the consumer keeps up."""
    each = 16 * TURN_ROWS
    with serve(batch_size=4, num_buffers=2) as server:
        connections = [connect(name=f"w{maker}") for maker in range(3)]
        for maker, connection in enumerate(connections):
            connection.send_batch(stacked(maker, 0, each))
        until(lambda: [p.state for p in server.peers()] == ["waiting for space"] * 3, "all of them wait")
        tally = Tally()
        while tally.count < 3 * each // 2:
            tally.add(server.sample(10).batch)
        shares = [len(numbers) for numbers in tally.numbers.values()]
        assert len(shares) == 3 and max(shares) < 2 * min(shares), shares
        while tally.count < 3 * each:
            tally.add(server.sample(10).batch)
        for connection in connections:
            connection.close()
        tally.check(dict.fromkeys(range(3), each))


def test_a_turn_is_handed_on_in_the_order_of_asking() -> None:
    turn, order = FairLock(), []
    assert turn.acquire(0) and not turn.acquire(0) and not turn.acquire(0.01)

    def ask(name: int) -> None:
        assert turn.acquire(10)
        order.append(name)
        turn.release()

    threads = []
    for name in range(5):
        threads.append(threading.Thread(target=ask, args=(name,)))
        threads[-1].start()
        until(lambda: len(turn._waiting) == len(threads), "it waits")
    turn.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
    assert turn.acquire(0)


def test_a_sample_that_does_not_fit_is_refused_and_nothing_of_it_is_sent() -> None:
    with serve() as server, connect() as connection:
        bad = sample(0, 0) | {"filler": np.zeros(47, np.uint8)}
        with pytest.raises(SpecError, match="filler"):
            connection.send(bad)
        ragged = stacked(0, 0, 3) | {"number": np.zeros(2, np.int64)}
        with pytest.raises(SpecError, match="number"):
            connection.send_batch(ragged)
        connection.send_batch(stacked(0, 0, 2))
        assert server.sample(10).batch["number"].tolist() == [0, 1]


@pytest.mark.parametrize("size", [48, 600_000])
def test_a_learner_that_closes_leaves_nothing_to_be_sent_twice(size: int) -> None:
    """The learner acknowledges all stored samples before its BYE and stores none after it, so the next learner gets the rest."""
    spec, tally, stop, sent = Spec.from_example(example(size)), Tally(), threading.Event(), [0]

    def drain(server: Server) -> None:
        while (batch := server.sample(20)) is not None:
            tally.add(batch.batch)

    def work(connection: ChannelConnection) -> None:
        while not stop.is_set():
            connection.send(sample(0, sent[0], size))
            sent[0] += 1
        connection.wait()

    servers = [serve(example(size), batch_size=1, num_buffers=64)]
    with connect(spec, timeout=20) as connection:
        worker = threading.Thread(target=work, args=(connection,))
        worker.start()
        for _ in range(8):
            drainer = threading.Thread(target=drain, args=(servers[-1],))
            drainer.start()
            seen = tally.count
            until(lambda seen=seen: tally.count > seen + 20, "samples")  # type: ignore[misc]
            servers[-1].close(restarting=True)
            drainer.join()
            servers.append(serve(example(size), batch_size=1, num_buffers=64))
        drainer = threading.Thread(target=drain, args=(servers[-1],))
        drainer.start()
        stop.set()
        worker.join()
    servers[-1].close()
    drainer.join()
    tally.check({0: sent[0]})


def test_turns_at_a_full_store_are_not_much_longer_than_the_shortest() -> None:
    turn = FairLock()
    assert turn.acquire(0)
    assert turn.share() == FairLock.LONG, "nobody else waits"
    shares = []
    for taken in (1, 256, 256, *[256] * 6):
        other = threading.Thread(target=turn.acquire, args=(10,))
        other.start()
        until(lambda: len(turn._waiting) == 1, "another thread waits")
        shares.append(turn.share())
        turn.release(taken)
        other.join()
    assert shares[0] > 1024, "there was no turn yet"
    assert shares[1:5] == [4, 4, 4, 4], "the shortest one of the last turns counts"
    assert shares[-1] == 1024, "and is forgotten when every client had a longer one"

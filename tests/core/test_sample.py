"""Out of the store: batches, the leases that keep them, and the figures that come with them."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from echo_core import EchoTimeoutError, HistSnapshot, LeaseError, Sample, SampleInfo, Server
from echo_testing.samples import Tally, example, sample, stacked

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.every_python]  # a server needs one


def filled(batch_size: int = 2, num_buffers: int = 3, batches: int | None = None) -> Server:
    """A server with so many whole batches (None: all it has room for), numbered by maker 0."""
    server = Server(example(), batch_size, num_buffers=num_buffers, lease_timeout=0.2)
    server.submit_batch(stacked(0, 0, batch_size * (num_buffers if batches is None else batches)))
    return server


def leases(server: Server) -> int:
    return server.stats()["store/leases_held"]


# ---- the batch -------------------------------------------------------------------------------


def test_a_sample_unpacks_and_shows_itself() -> None:
    server = filled()
    one = server.sample(timeout=5)
    assert isinstance(one, Sample)
    batch, info = one
    assert (batch, info) == (one.batch, one.info) == (one[0], one[1])
    assert batch is one.batch
    assert isinstance(info, SampleInfo)
    assert len(one) == 2
    match one:
        case Sample(matched, _):
            assert matched is batch
    assert repr(one).startswith("Sample(batch={'maker': array([0, 0])")
    other = one.with_batch("another")
    assert (other.batch, other.info) == ("another", info)


def test_arrays_are_aligned_contiguous_and_writable() -> None:
    tree = {"a": np.zeros((3,), np.int8), "b": np.zeros((), np.float64), "c": np.zeros((2, 5), "f2")}
    server = Server(tree, batch_size=7)
    server.submit_batch({name: np.zeros((7, *leaf.shape), leaf.dtype) for name, leaf in tree.items()})
    batch, _ = server.sample(timeout=5)
    assert list(batch) == ["a", "b", "c"]
    for name, leaf in tree.items():
        array = batch[name]
        assert (array.shape, array.dtype) == ((7, *leaf.shape), leaf.dtype)
        assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned
        assert not array.flags.owndata
        assert array.ctypes.data % 64 == 0
        array[...] = 1


def test_batches_come_in_order_of_arrival() -> None:
    server = filled(batch_size=4, num_buffers=5)
    tally = Tally()
    for _ in range(5):
        tally.add(server.sample(timeout=5).batch)
    tally.check({0: 20})


# ---- leases ----------------------------------------------------------------------------------


def test_batches_kept_in_a_list_stay_valid_and_unchanged() -> None:
    server = Server(example(), batch_size=2, num_buffers=6)
    kept, copies = [], []
    thread = threading.Thread(target=server.submit_batch, args=(stacked(0, 0, 2000), 60))
    thread.start()
    tally = Tally()
    for turn in range(1000):
        batch = server.sample(timeout=10).batch
        tally.add(batch)
        if turn in (0, 13, 500, 998):
            kept.append(batch)
            copies.append({name: array.copy() for name, array in batch.items()})
        del batch
    thread.join(60)
    tally.check({0: 2000})
    for batch, copy in zip(kept, copies):
        assert all((batch[name] == copy[name]).all() for name in copy)
    assert leases(server) == 4


def test_a_learner_that_keeps_everything_is_told_so() -> None:
    server = filled(num_buffers=3)
    kept = [server.sample(timeout=5) for _ in range(3)]
    for timeout in (0, 0.05):
        with pytest.raises(LeaseError, match=r"all 3 batch buffers.*copy=True.*num_buffers"):
            server.sample(timeout=timeout)
    with pytest.raises(LeaseError):
        server.sample()  # without a timeout: after lease_timeout
    assert issubclass(LeaseError, EchoTimeoutError)
    kept.pop(1)
    server.submit_batch(stacked(0, 6, 2), timeout=0)
    assert server.sample(timeout=5).batch["number"].tolist() == [6, 7]


def test_waiting_with_a_buffer_left_is_no_lease_error() -> None:
    server = filled(num_buffers=3)
    kept = [server.sample(timeout=5) for _ in range(2)]
    server.sample(timeout=5)
    with pytest.raises(EchoTimeoutError, match=r"samples there: 0 of 2, .*samples inserted so far: 6;") as e:
        server.sample(timeout=0.3)
    assert not isinstance(e.value, LeaseError)
    del kept


def test_a_lease_given_back_meanwhile_ends_the_wait() -> None:
    server = filled(num_buffers=2)
    server_timeout = Server(example(), 2, num_buffers=2, lease_timeout=30)
    server_timeout.submit_batch(stacked(0, 0, 4))
    kept = [server_timeout.sample(timeout=5), server_timeout.sample(timeout=5)]

    def later() -> None:
        time.sleep(0.1)
        kept.pop()
        server_timeout.submit_batch(stacked(0, 4, 2), timeout=10)

    thread = threading.Thread(target=later)
    thread.start()
    assert server_timeout.sample(timeout=10).batch["number"].tolist() == [4, 5]
    thread.join(10)
    del server


def test_leases_may_be_given_back_in_any_order() -> None:
    server = Server(example(), batch_size=1, num_buffers=8)
    rng, kept, tally, sent = random.Random(1), [], Tally(), 0
    for _ in range(500):
        while len(kept) < 6:
            server.submit(sample(0, sent), timeout=0)
            sent += 1
            kept.append(server.sample(timeout=0))
            tally.add(kept[-1].batch)
        rng.shuffle(kept)
        del kept[rng.randrange(6) :]
        assert leases(server) == len(kept)
    tally.check({0: sent})


@pytest.mark.parametrize(
    "view",
    [
        lambda batch: batch["filler"],
        lambda batch: batch["filler"][1, 3:5],
        lambda batch: batch["filler"].view(np.int8).reshape(-1)[::7],
        lambda batch: memoryview(batch["filler"]),
        lambda batch: np.asarray(memoryview(batch["number"])[1:]),
        lambda batch: iter(batch["filler"]),
        lambda batch: np.lib.stride_tricks.as_strided(batch["filler"], (1,), (1,)),
        lambda batch: batch["maker"].reshape(1, 2).T,
    ],
)
def test_every_kind_of_view_keeps_the_lease(view: Any) -> None:
    server = filled(num_buffers=2)
    kept = view(server.sample(timeout=5).batch)
    assert leases(server) == 1
    del kept
    assert leases(server) == 0


def test_copies_and_figures_keep_nothing() -> None:
    server = filled(num_buffers=2)
    one = server.sample(timeout=5)
    info, copy, text = one.info, one.batch["filler"].copy(), repr(one)
    del one
    assert leases(server) == 0
    assert info.leases_held == 1
    assert text and copy.shape == (2, 48)


def test_a_batch_in_a_reference_cycle_goes_with_the_collector() -> None:
    server = filled(num_buffers=2)
    knot: list[Any] = [server.sample(timeout=5)]
    knot.append(knot)
    del knot
    gc.collect()
    assert leases(server) == 0


def test_batches_may_be_dropped_by_any_thread() -> None:
    server = Server(example(), batch_size=1, num_buffers=4)
    kept: list[Sample | None] = []
    done = threading.Event()

    def drop() -> None:
        while not done.is_set() or kept:
            if kept:
                kept.pop()
            else:
                time.sleep(0)

    droppers = [threading.Thread(target=drop) for _ in range(2)]
    writer = threading.Thread(target=server.submit_batch, args=(stacked(0, 0, 3000), 60))
    for thread in (*droppers, writer):
        thread.start()
    tally = Tally()
    for _ in range(3000):
        one = server.sample(timeout=10)
        tally.add(one.batch)
        kept.append(one)
        del one
    done.set()
    for thread in (*droppers, writer):
        thread.join(30)
    tally.check({0: 3000})
    assert leases(server) == 0


def test_batches_outlive_server_and_close(python) -> None:
    python(
        """
        import gc, threading
        import numpy as np
        from echo_core import Server
        from echo_testing.samples import example, stacked, Tally

        server = Server(example(), batch_size=4, num_buffers=4)
        server.submit_batch(stacked(0, 0, 16))
        first, second, third = (server.sample() for _ in range(3))
        view = first.batch["filler"][2, 5:9]
        server.close()
        fourth = server.sample()
        assert server.sample() is None
        del server
        gc.collect()
        tally = Tally()
        for one in (first, second, third, fourth):
            tally.add(one.batch)
            one.batch["filler"][...] = 255
        tally.check({0: 16})
        assert second.info.samples_inserted_total == 16 and second.info.queue_dwell.count == 4
        info = second.info
        del first, second, third, fourth, one
        assert view.tolist() == [255] * 4
        del view
        assert info.copy.count > 0
        """
    )


def test_taking_batches_leaves_no_references_behind() -> None:
    key = "a key that nobody else has"
    dtype = np.dtype([("x", "f4"), ("y", "i8")])
    tree = {key: np.zeros(2, dtype), "more": [np.zeros(3, np.int8), (np.zeros(()), None)]}
    server = Server(tree, batch_size=1)

    def turn(times: int) -> None:
        for _ in range(times):
            server.submit(tree, timeout=0)
            server.sample(timeout=0)

    turn(10)
    gc.collect()
    before = sys.getrefcount(key), sys.getrefcount(dtype), len(gc.get_objects())
    turn(200)
    gc.collect()
    after = sys.getrefcount(key), sys.getrefcount(dtype), len(gc.get_objects())
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 50


# ---- figures ---------------------------------------------------------------------------------


def test_counters_say_what_happened() -> None:
    server = Server(example(), batch_size=2, num_buffers=3)
    server.submit_batch(stacked(0, 0, 5))
    one = server.sample(timeout=5)
    info = one.info
    assert (info.store_size, info.samples_inserted_total, info.batches_taken_total) == (3, 5, 1)
    assert (info.leases_held, info.push_blocked_count, info.samples_aborted_total) == (1, 0, 0)
    assert (info.active_connections, info.queue_depth_sum, info.queue_depth_max) == (0, 0, 0)
    del one
    server.submit_batch(stacked(0, 5, 3))
    with pytest.raises(EchoTimeoutError):
        server.submit(sample(0, 8), timeout=0)
    later = server.sample(timeout=5).info
    assert (later.store_size, later.samples_inserted_total, later.batches_taken_total) == (4, 8, 2)
    assert later.push_blocked_count >= 1
    assert (info.store_size, info.samples_inserted_total) == (3, 5), "a figure is of its moment"
    stats = server.stats()
    assert stats["store/samples_inserted_total"] == 8
    assert stats["store/samples"] == 4
    assert stats["store/capacity"] == 6
    assert "samples_inserted_total=5" in repr(info)


def test_a_sleeping_learner_is_counted_when_woken() -> None:
    server = Server(example(), batch_size=1, num_buffers=3)
    for number in range(3):
        thread = threading.Timer(0.05, server.submit, (sample(0, number),))
        thread.start()
        info = server.sample(timeout=10).info
        thread.join()
    assert 1 <= info.notify_count <= 3


def test_histograms_are_always_on() -> None:
    server = Server(example(), batch_size=64, num_buffers=2)
    for number in range(128):
        server.submit(sample(0, number))
    time.sleep(0.01)
    info = server.sample(timeout=5).info
    assert server.sample(timeout=5).info.queue_dwell.count == 2
    for histogram in (info.copy, info.queue_dwell):
        assert isinstance(histogram, HistSnapshot)
        assert histogram.count == 2  # one copy in 64 is timed
        low, *middle, high = (
            histogram.min_ns,
            histogram.p50_ns,
            histogram.p90_ns,
            histogram.p99_ns,
            histogram.max_ns,
        )
        assert [low, *middle, high] == sorted([low, *middle, high])
        assert low <= histogram.mean_ns <= high
    assert info.queue_dwell.max_ns >= 10_000_000
    assert info.ingest_round.count == 0
    assert (info.memcpy, info.drain_round) == (info.copy, info.ingest_round)
    server.reset_histograms()
    assert info.copy == HistSnapshot(0, 0, 0, 0.0, 0, 0, 0)
    assert server.stats()["latency/queue_dwell_count"] == 0
    assert server.stats()["store/samples_inserted_total"] == 128


def test_totals_never_run_backwards_while_writers_write() -> None:
    server = Server(example(8), batch_size=16, num_buffers=3)
    stop = threading.Event()
    seen: list[int] = []

    def watch() -> None:
        while not stop.is_set():
            seen.append(server.stats()["store/samples_inserted_total"])

    def write(maker: int) -> None:
        for number in range(0, 3000, 3):
            server.submit_batch(stacked(maker, number, 3, 8), timeout=30)

    watcher = threading.Thread(target=watch)
    writers = [threading.Thread(target=write, args=(maker,)) for maker in range(2)]
    for thread in (watcher, *writers):
        thread.start()
    for _ in range(6000 // 16):
        server.sample(timeout=30)
    for thread in writers:
        thread.join(30)
    stop.set()
    watcher.join(30)
    assert seen == sorted(seen)
    assert max(seen) <= 6000
    assert server.stats()["store/samples_inserted_total"] == 6000

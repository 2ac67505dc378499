"""Clauses about samples from worker to learner: each arrives complete, once, in order, and bit for bit the same."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import ClassVar

import numpy as np
import optree
import pytest

from echo_core.base.errors import EchoTimeoutError

from ..processes import SLOWER, returns
from ..rig import PATIENCE, Rig, drain
from ..samples import (
    Tally,
    assert_same,
    example,
    random_like,
    rich_example,
    sample,
    stacked,
)
from ..threads import ended, in_thread
from . import carrier

ARRIVAL_SECONDS = 10 * SLOWER


class ArrivalClauses:
    """The clause that comes first. All others need a sample to arrive, so they are skipped if it fails, and the failure shows what the learner logged."""

    unable: ClassVar[str] = ""  # why no sample arrives

    def test_a_sample_arrives(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        try:
            server = rig.server(example(), batch_size=1)
            client = rig.client(server, timeout=ARRIVAL_SECONDS)
            client.send(sample(1, 0))
            got = server.sample(timeout=ARRIVAL_SECONDS).batch
        except Exception as error:
            said = [record.getMessage() for record in caplog.records if record.name == "echo"]
            heard = f"; the log says: {'; '.join(dict.fromkeys(said))}" if said else ""
            type(self).unable = f"no sample arrives: {type(error).__name__}: {error}{heard}"
            pytest.fail(type(self).unable)
        assert_same({name: leaf[0] for name, leaf in got.items()}, sample(1, 0))


class ExperienceClauses:
    @carrier
    def test_every_dtype_and_shape_arrives_bit_exact_and_in_order(self, rig: Rig) -> None:
        tree = rich_example()
        server = rig.server(tree, batch_size=4)
        client = rig.client(server, tree)
        batch = random_like(tree, seed=1, lead=(20,))
        for row in range(8):
            client.send(optree.tree_map(lambda leaf, row=row: leaf[row], batch))
        client.send_batch(optree.tree_map(lambda leaf: leaf[8:], batch))
        for start in range(0, 20, 4):
            got = server.sample(timeout=PATIENCE).batch
            assert_same(got, optree.tree_map(lambda leaf, at=start: leaf[at : at + 4], batch))

    @carrier
    @pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 0, 64, 1, 300), (8, 8, 8)])
    def test_batches_and_single_samples_keep_their_order(
        self, rig: Rig, sizes: tuple[int, ...]
    ) -> None:
        server = rig.server(batch_size=8, num_buffers=64)
        client = rig.client(server)
        sent = 0
        for size in sizes * 3:
            client.send_batch(stacked(1, sent, size))
            client.send(sample(1, sent + size))
            sent += size + 1
        client.send_batch(stacked(1, sent, -sent % 8))
        drain(server, sent + -sent % 8).check({1: sent + -sent % 8})

    @carrier
    def test_many_small_samples_keep_their_order(self, rig: Rig) -> None:
        server = rig.server(example(4), batch_size=100)
        client = rig.client(server, example(4))

        def work() -> None:
            for number in range(20_000):
                client.send(sample(2, number, 4))

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        drain(server, 20_000).check({2: 20_000})
        worker.join(PATIENCE)

    def test_workers_that_wait_for_space_take_turns(self, rig: Rig) -> None:
        server = rig.server(batch_size=4, num_buffers=3)
        ended = threading.Event()

        def pour(maker: int) -> None:
            # The window is much larger than the store, and small enough to be received in batches of four at the end.
            with rig.client(server, max_inflight_msgs=1000) as client:
                for number in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
                    client.send(sample(maker, number))

        workers = [threading.Thread(target=pour, args=(maker,), daemon=True) for maker in range(3)]
        for worker in workers:
            worker.start()
        tally, batches = Tally(), 0
        while len(tally.numbers) < len(workers):
            tally.add(server.sample(timeout=PATIENCE).batch)
            batches += 1
            assert batches < 100_000, f"only {sorted(tally.numbers)} of {len(workers)} workers were served"
        before = {maker: len(numbers) for maker, numbers in tally.numbers.items()}
        for _ in range(400):
            time.sleep(0.001)  # slower than any worker, so that all of them always wait
            tally.add(server.sample(timeout=PATIENCE).batch)
        shares = [len(tally.numbers[maker]) - before[maker] for maker in before]
        ended.set()
        until = time.monotonic() + PATIENCE
        while any(worker.is_alive() for worker in workers) and time.monotonic() < until:
            with contextlib.suppress(EchoTimeoutError):
                tally.add(server.sample(timeout=0.1).batch)
        assert not any(worker.is_alive() for worker in workers)
        assert min(shares) * len(shares) > sum(shares) / 8, f"of the samples taken: {shares}"

    @carrier
    @pytest.mark.parametrize("filler", [100_003, 3 << 20, (17 << 20) + 1])
    def test_samples_of_any_size_arrive_whole(self, rig: Rig, filler: int) -> None:
        server = rig.server(example(filler), batch_size=1, num_buffers=2)
        client = rig.client(server, example(filler))
        worker = threading.Thread(
            target=lambda: [client.send(sample(3, number, filler)) for number in range(4)],
            daemon=True,
        )
        worker.start()
        drain(server, 4).check({3: 4})
        worker.join(PATIENCE)

    @carrier
    def test_a_batch_larger_than_any_frame_and_window_arrives_whole(self, rig: Rig) -> None:
        filler, count = 300_000, 64
        server = rig.server(example(filler), batch_size=4, num_buffers=2)
        client = rig.client(server, example(filler), window_bytes=1 << 20)
        batch = stacked(4, 0, count, filler)
        worker = threading.Thread(target=client.send_batch, args=(batch,), daemon=True)
        worker.start()
        drain(server, count).check({4: count})
        worker.join(PATIENCE)
        assert not worker.is_alive()

    @carrier
    def test_samples_without_bytes_are_counted_like_others(self, rig: Rig) -> None:
        tree = {"a": np.zeros((0, 3), np.float32), "b": np.zeros(0, np.int8)}
        server = rig.server(tree, batch_size=5)
        client = rig.client(server, tree)
        for _ in range(3):
            client.send(tree)
        client.send_batch({"a": np.zeros((9, 0, 3), np.float32), "b": np.zeros((9, 0), np.int8)})
        client.wait()
        assert server.stats()["store/samples_inserted_total"] == 12
        assert server.sample(timeout=PATIENCE).batch["a"].shape == (5, 0, 3)

    @carrier
    def test_arrays_may_be_changed_as_soon_as_they_are_sent(self, rig: Rig) -> None:
        filler = 70_000  # large enough for a transport to send it without a copy
        server = rig.server(example(filler), batch_size=10)
        client = rig.client(server, example(filler))
        one, batch = sample(5, 0, filler), stacked(5, 0, 3, filler)
        sent = 0
        while sent < 40:
            for name, value in sample(5, sent, filler).items():
                one[name][...] = value
            client.send(one)
            one["filler"][...] = 255
            for name, value in stacked(5, sent + 1, 3, filler).items():
                batch[name][...] = value
            client.send_batch(batch)
            batch["filler"][...] = 255
            sent += 4
        drain(server, 40).check({5: 40})

    def test_memory_layout_and_byte_order_are_adapted(self, rig: Rig) -> None:
        tree = {"x": np.zeros((3, 4), np.float32)}
        server = rig.server(tree, batch_size=5)
        client = rig.client(server, tree)
        values = np.arange(12, dtype=np.float32).reshape(3, 4)
        frozen = values.copy()
        frozen.flags.writeable = False
        for form in (
            np.asfortranarray(values),
            np.repeat(values, 2, axis=1)[:, ::2],
            values.astype(">f4"),
            frozen,
            np.broadcast_to(values, (1, 3, 4))[0],
        ):
            client.send({"x": form})
        assert (server.sample(timeout=PATIENCE).batch["x"] == values).all()

    def test_an_acknowledged_sample_is_committed(self, rig: Rig) -> None:
        server = rig.server(batch_size=50, num_buffers=20)
        client = rig.client(server)
        sent = 0
        for count in (1, 2, 5, 100, 7, 300):
            for number in range(count):
                client.send(sample(6, sent + number))
            sent += count
            client.wait()
            assert server.stats()["store/samples_inserted_total"] == sent
        stats = client.stats()
        assert (stats["samples"], stats["acknowledged"], stats["unacknowledged"]) == (sent, sent, 0)

    @carrier
    def test_several_workers_share_a_learner(self, rig: Rig) -> None:
        workers, each = 4, 1_500
        server = rig.server(batch_size=20)
        clients = [rig.client(server) for _ in range(workers)]

        def work(maker: int) -> None:
            for number in range(0, each, 3):
                clients[maker].send(sample(maker, number))
                clients[maker].send_batch(stacked(maker, number + 1, 2))

        threads = [in_thread(work, maker) for maker in range(workers)]
        drain(server, workers * each).check(dict.fromkeys(range(workers), each))
        ended(*threads)

    @carrier
    @pytest.mark.parametrize("filler", [48, 50_000])
    def test_threads_that_share_a_client_tear_nothing(self, rig: Rig, filler: int) -> None:
        makers, each = 4, 600 if filler < 1000 else 60
        server = rig.server(example(filler), batch_size=12)
        client = rig.client(server, example(filler), window_bytes=1 << 20)

        def work(maker: int) -> None:
            for number in range(0, each, 3):
                client.send(sample(maker, number, filler))
                client.send_batch(stacked(maker, number + 1, 2, filler))
            client.wait()

        threads = [in_thread(work, maker) for maker in range(makers)]
        drain(server, makers * each).check(dict.fromkeys(range(makers), each))
        ended(*threads)

    def test_batches_that_are_held_stay_as_they_were(self, rig: Rig) -> None:
        server = rig.server(batch_size=4, num_buffers=5)
        client = rig.client(server)
        worker = in_thread(lambda: [client.send(sample(7, number)) for number in range(800)])
        held, copies, tally = [], [], Tally()
        for turn in range(200):
            batch = server.sample(timeout=PATIENCE).batch
            tally.add(batch)
            if turn in (0, 60, 120):
                held.append(batch)
                copies.append({name: array.copy() for name, array in batch.items()})
            del batch
        ended(worker)
        tally.check({7: 800})
        for batch, copy in zip(held, copies):
            assert_same(batch, copy)

    @carrier
    def test_samples_are_made_in_place(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=16)
        client = rig.client(server)
        for number in range(8):
            with client.reserve() as slot:
                for name, value in sample(1, number // 2).items():
                    slot.sample[name][...] = value
                if number % 2:
                    slot.commit()
                    with pytest.raises(ValueError, match="already"):
                        slot.commit()
        drain(server, 4).check({1: 4}, in_order=False)

    def test_a_slot_is_not_committed_while_its_arrays_live(self, rig: Rig) -> None:
        server = rig.server(batch_size=1)
        client = rig.client(server)
        slot = client.reserve()
        for name, value in sample(1, 0).items():
            slot.sample[name][...] = value
        kept = slot.sample["number"]
        with pytest.raises(BufferError, match="alive"):
            slot.commit()
        del kept
        slot.commit()
        drain(server, 1).check({1: 1})

    def test_learners_beside_each_other_are_apart(self, rig: Rig) -> None:
        first, second = rig.server(), rig.server()
        assert first.address != second.address
        to_first, to_second = rig.client(first), rig.client(second)
        to_first.send_batch(stacked(1, 0, 16))
        to_second.send_batch(stacked(2, 0, 24))
        drain(first, 16).check({1: 16})
        drain(second, 24).check({2: 24})

    @carrier
    def test_flush_hands_everything_over(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=16)
        client = rig.client(server)
        for number in range(10):
            client.send(sample(1, number))
        assert returns(client.flush, PATIENCE) is None
        drain(server, 10).check({1: 10})

"""Into the store: what is taken, what is refused, who waits, and that threads lose nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import pytest

from echo_core import ClosedError, EchoTimeoutError, Server, SpecError
from echo_core.testing.samples import (
    Tally,
    assert_same,
    example,
    random_like,
    rich_example,
    sample,
    stacked,
)

pytestmark = pytest.mark.needs("echo-samplers")  # a server needs one


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(*threads: threading.Thread, within: float = 60.0) -> None:
    for thread in threads:
        thread.join(within)
        assert not thread.is_alive(), "a thread hangs"


def inserted(server: Server) -> int:
    return server.stats()["store/samples_inserted_total"]


# ---- what goes in comes out ------------------------------------------------------------------


def test_every_dtype_arrives_bit_exact_and_in_order() -> None:
    tree = rich_example()
    server = Server(tree, batch_size=3)
    samples = [random_like(tree, seed) for seed in range(6)]
    for one in samples:
        server.submit(one)
    for start in (0, 3):
        batch, _ = server.sample(timeout=5)
        for row in range(3):
            rows = optree.tree_map(lambda leaf, row=row: leaf[row, ...], batch)
            assert_same(rows, optree.tree_map(np.asarray, samples[start + row]))


def test_a_batch_of_every_dtype_arrives_bit_exact() -> None:
    tree = rich_example()
    server = Server(tree, batch_size=4)
    samples = random_like(tree, seed=1, lead=(10,))
    assert server.submit_batch(samples) == 10
    for start in (0, 4):
        batch, _ = server.sample(timeout=5)
        wanted = optree.tree_map(lambda leaf, start=start: leaf[start : start + 4], samples)
        assert_same(batch, wanted)


@pytest.mark.parametrize("leaves", [1, 63, 64, 65, 150])
def test_any_number_of_leaves(leaves: int) -> None:
    tree = {f"leaf{i:03}": np.zeros(i % 4, np.int32) for i in range(leaves)}
    server = Server(tree, batch_size=2)
    samples = random_like(tree, seed=2, lead=(4,))
    server.submit(optree.tree_map(lambda leaf: leaf[0], samples))
    server.submit_batch(optree.tree_map(lambda leaf: leaf[1:], samples))
    for start in (0, 2):
        wanted = optree.tree_map(lambda leaf, start=start: leaf[start : start + 2], samples)
        assert_same(server.sample(timeout=5).batch, wanted)


def test_samples_without_bytes_are_counted_like_others() -> None:
    server = Server({"a": np.zeros((0, 3), np.float32), "b": np.zeros(0, np.int8)}, batch_size=2)
    empty = {"a": np.zeros((0, 3), np.float32), "b": np.zeros(0, np.int8)}
    server.submit(empty)
    with pytest.raises(EchoTimeoutError):
        server.sample(timeout=0)
    server.submit(empty)
    batch, info = server.sample(timeout=5)
    assert (batch["a"].shape, batch["b"].shape) == ((2, 0, 3), (2, 0))
    assert info.samples_inserted_total == 2
    with pytest.raises(EchoTimeoutError):
        server.sample(timeout=0)


def test_leaves_without_axes_become_vectors() -> None:
    server = Server(np.zeros((), np.int16), batch_size=3)
    server.submit(np.array(1, np.int16))
    server.submit(np.int16(2))
    server.submit(3)
    batch, _ = server.sample(timeout=5)
    assert batch.dtype == np.int16
    assert batch.tolist() == [1, 2, 3]


def test_memory_layout_and_byte_order_are_adapted() -> None:
    server = Server({"x": np.zeros((3, 4), np.float32)}, batch_size=4)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    server.submit({"x": np.asfortranarray(values)})
    server.submit({"x": np.repeat(values, 2, axis=1)[:, ::2]})
    server.submit({"x": values.astype(">f4")})
    frozen = values.copy()
    frozen.flags.writeable = False
    server.submit({"x": frozen})
    batch, _ = server.sample(timeout=5)
    assert (batch["x"] == values).all()


def test_the_samples_arrays_may_be_changed_at_once() -> None:
    server = Server(example(), batch_size=16)
    one = sample(0, 0)
    for number in range(16):
        for name, value in sample(5, number).items():
            one[name][...] = value
        server.submit(one)
    tally = Tally()
    tally.add(server.sample(timeout=5).batch)
    tally.check({5: 16})


# ---- what is refused -------------------------------------------------------------------------

GOOD = {"obs": {"pos": np.zeros(4, np.float32)}, "reward": np.zeros((), np.float32)}
BAD: dict[str, tuple[Any, str]] = {
    "other dtype": ({"obs": {"pos": np.zeros(4, np.int32)}, "reward": np.float32(0)}, "pos"),
    "wider dtype": ({"obs": {"pos": np.zeros(4)}, "reward": np.float32(0)}, "pos"),
    "dtype of a scalar": ({"obs": GOOD["obs"], "reward": np.float64(0)}, "reward"),
    "other key": ({"obs": {"position": np.zeros(4, np.float32)}, "reward": np.float32(0)}, "pos"),
    "missing key": ({"obs": GOOD["obs"]}, "reward"),
    "one key more": ({**GOOD, "done": np.zeros((), np.bool_)}, "done"),
    "same bytes": ({"obs": {"pos": np.zeros((2, 2), np.float32)}, "reward": np.float32(0)}, "pos"),
    "other size": ({"obs": {"pos": np.zeros(5, np.float32)}, "reward": np.float32(0)}, "pos"),
    "several": ({"obs": {"pos": np.zeros((9, 4), np.float32)}, "reward": np.float32(0)}, "pos"),
    "objects": ({"obs": {"pos": np.array([None] * 4)}, "reward": np.float32(0)}, "pos"),
    "no tree": (np.zeros(5, np.float32), "dict|obs"),
    "nothing": (None, "dict|obs"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_sample_that_does_not_match_is_refused_by_name(case: str) -> None:
    bad, leaf = BAD[case]
    server = Server(GOOD, batch_size=2)
    server.submit(GOOD)
    with pytest.raises(SpecError, match=leaf):
        server.submit(bad)
    assert inserted(server) == 1
    server.submit(GOOD)
    assert server.sample(timeout=5).info.samples_inserted_total == 2


@pytest.mark.parametrize("case", [name for name in BAD if name != "several"])
def test_a_batch_that_does_not_match_is_refused_by_name(case: str) -> None:
    bad, leaf = BAD[case]
    server = Server(GOOD, batch_size=2)
    with pytest.raises(SpecError, match=leaf):
        server.submit_batch(optree.tree_map(lambda x: np.stack([x] * 4), bad))
    assert inserted(server) == 0


def test_the_leaves_of_a_batch_must_agree_how_many_there_are() -> None:
    server = Server(GOOD, batch_size=2)
    uneven = {"obs": {"pos": np.zeros((4, 4), np.float32)}, "reward": np.zeros(3, np.float32)}
    with pytest.raises(SpecError, match="reward"):
        server.submit_batch(uneven)
    assert inserted(server) == 0


@pytest.mark.parametrize(
    ("batch_size", "num_buffers", "said"),
    [
        (0, 3, "batch_size"),
        (-1, 3, "batch_size"),
        (1 << 24, 3, "batch_size"),
        (2.0, 3, "batch_size"),
        (True, 3, "batch_size"),
        ("2", 3, "batch_size"),
        (2, 1, "num_buffers"),
        (2, 1 << 12, "num_buffers"),
        ((1 << 24) - 1, 4095, r"2\*\*32"),
    ],
)
def test_sizes_that_cannot_be(batch_size: Any, num_buffers: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Server(GOOD, batch_size, num_buffers=num_buffers)


def test_whole_numbers_of_numpy_are_sizes_too() -> None:
    server = Server(GOOD, np.int64(2), num_buffers=np.uint8(4))
    assert (server.batch_size, server.num_buffers) == (2, 4)


def test_more_memory_than_there_is_says_how_much() -> None:
    frame = {"x": np.zeros((1 << 20,), np.float32)}
    with pytest.raises(MemoryError, match=r"7 buffers of 1000000 .*29,360,\d{3},\d{3},\d{3} bytes"):
        Server(frame, batch_size=1_000_000, num_buffers=7)
    with pytest.raises(MemoryError):  # and more than 64 bits can count
        Server({"x": np.broadcast_to(np.int64(0), (1 << 40,))}, 1 << 23)


# ---- waiting for space -----------------------------------------------------------------------


def test_a_full_store_says_who_waits_for_whom() -> None:
    server = Server(GOOD, batch_size=2, num_buffers=2)
    for _ in range(4):
        server.submit(GOOD)
    with pytest.raises(EchoTimeoutError, match=r"submit\(\).*0.05 s.*4 samples.*sample\(\)"):
        server.submit(GOOD, timeout=0.05)
    with pytest.raises(TimeoutError):
        server.submit(GOOD, timeout=0)
    assert inserted(server) == 4
    held = [server.sample(timeout=5), server.sample(timeout=5)]
    with pytest.raises(EchoTimeoutError, match="leased"):
        server.submit(GOOD, timeout=0)
    assert server.stats()["store/push_blocked_count"] >= 3
    del held
    server.submit(GOOD, timeout=0)
    assert inserted(server) == 5


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_timeouts_that_cannot_be(timeout: float) -> None:
    server = Server(GOOD, batch_size=1, num_buffers=2)
    server.submit(GOOD)
    server.submit(GOOD)
    with pytest.raises(ValueError, match="timeout"):
        server.submit(GOOD, timeout=timeout)
    with pytest.raises(TypeError):
        server.submit(GOOD, timeout="soon")


@pytest.mark.parametrize("timeout", [None, float("inf"), 60])
def test_a_waiting_writer_goes_on_when_a_batch_is_dropped(timeout: float | None) -> None:
    server = Server(example(), batch_size=1, num_buffers=2)
    thread = in_thread(lambda: [server.submit(sample(0, i), timeout=timeout) for i in range(50)])
    tally = Tally()
    for _ in range(50):
        tally.add(server.sample(timeout=10).batch)
    ended(thread)
    tally.check({0: 50})


def test_batches_cross_the_boundaries_of_batches() -> None:
    server = Server(example(), batch_size=5, num_buffers=8)
    sizes, sent = [1, 5, 4, 0, 7, 11, 2], 0
    for count in sizes:
        assert server.submit_batch(stacked(3, sent, count)) == count
        sent += count
    tally = Tally()
    while tally.count < sent // 5 * 5:
        tally.add(server.sample(timeout=5).batch)
    tally.check({3: 30})


def test_a_batch_that_fits_only_in_part_says_how_much() -> None:
    server = Server(example(), batch_size=2, num_buffers=3)
    server.submit(sample(0, 0))
    with pytest.raises(EchoTimeoutError, match=r"submit_batch\(\)") as caught:
        server.submit_batch(stacked(0, 1, 20), timeout=0.05)
    assert caught.value.inserted == 5
    tally = Tally()
    for _ in range(3):
        tally.add(server.sample(timeout=5).batch)
    assert server.submit_batch(stacked(0, 1 + caught.value.inserted, 4)) == 4
    for _ in range(2):
        tally.add(server.sample(timeout=5).batch)
    tally.check({0: 10})


def test_a_batch_larger_than_the_store_flows_through_it() -> None:
    server = Server(example(), batch_size=4, num_buffers=2)
    thread = in_thread(lambda: server.submit_batch(stacked(0, 0, 1000), timeout=60))
    tally = Tally()
    while tally.count < 1000:
        tally.add(server.sample(timeout=10).batch)
    ended(thread)
    tally.check({0: 1000})


def test_close_ends_a_writers_wait() -> None:
    server = Server(example(), batch_size=2, num_buffers=2)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            server.submit_batch(stacked(0, 0, 100), timeout=None)
        except ClosedError as error:
            errors.append(error)

    threads = [in_thread(write) for _ in range(3)]
    while inserted(server) < 4:
        time.sleep(0.001)
    server.close()
    ended(*threads)
    assert sum(error.inserted for error in errors) == 4
    with pytest.raises(ClosedError):
        server.submit(sample(0, 0))
    with pytest.raises(ClosedError):
        server.submit_batch(stacked(0, 0, 2))


# ---- threads ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch_size", "num_buffers"), [(1, 3), (7, 4), (32, 7)])
def test_many_writers_and_many_learners_share_every_sample_once(
    batch_size: int, num_buffers: int
) -> None:
    writers, learners, each = 4, 3, 7 * 32 * 10
    server = Server(example(), batch_size, num_buffers=num_buffers)
    tallies = [Tally() for _ in range(learners)]

    def write(maker: int) -> None:
        number = 0
        while number < each:
            if maker % 2:
                server.submit(sample(maker, number), timeout=60)
                number += 1
            else:
                count = min(1 + number % 11, each - number)
                server.submit_batch(stacked(maker, number, count), timeout=60)
                number += count

    def learn(tally: Tally) -> None:
        held = []
        while (got := server.sample(timeout=60)) is not None:
            tally.add(got.batch)
            held.append(got)
            del got  # while waiting for the next, each learner holds one buffer less than its share
            while len(held) >= num_buffers // learners:
                held.pop(0)

    consumers = [in_thread(lambda tally=tally: learn(tally)) for tally in tallies]
    producers = [in_thread(lambda maker=maker: write(maker)) for maker in range(writers)]
    ended(*producers)
    server.close()
    ended(*consumers)
    Tally().merge(tallies).check(dict.fromkeys(range(writers), each), in_order=False)


@pytest.mark.soak
@pytest.mark.parametrize("writers", [1, 4])
def test_flooding_batches_of_one_never_hangs(writers: int, soak_seconds: float) -> None:
    server = Server(example(8), batch_size=1)
    stop = threading.Event()
    sent = [0] * writers

    def write(maker: int) -> None:
        while not stop.is_set():
            server.submit(sample(maker, sent[maker], 8), timeout=30)
            sent[maker] += 1

    threads = [in_thread(lambda maker=maker: write(maker)) for maker in range(writers)]
    arrived = [0] * writers  # no Tally: ten minutes are a billion samples

    def take(timeout: float) -> None:
        batch = server.sample(timeout=timeout).batch
        maker = int(batch["maker"][0])
        assert batch["number"][0] == arrived[maker], "lost, doubled or out of order"
        arrived[maker] += 1

    end = time.monotonic() + soak_seconds
    while time.monotonic() < end:
        take(timeout=30)
    stop.set()
    while any(thread.is_alive() for thread in threads) or sum(arrived) < inserted(server):
        try:
            take(timeout=0.05)
        except EchoTimeoutError:
            pass
    ended(*threads)
    assert arrived == sent


def test_a_sample_changed_by_another_thread_while_it_waits_stays_whole(python) -> None:
    # The waiting submit() must own what it copies from: here the dict lets go of it meanwhile.
    python(
        """
        import threading, time
        import numpy as np
        from echo_core import Server

        shape = (1 << 22,)
        server = Server({"x": np.zeros(shape, np.uint8)}, batch_size=1, num_buffers=2)
        for call in (server.submit, server.submit_batch):
            lead = () if call == server.submit else (1,)
            for _ in range(2):
                server.submit({"x": np.zeros(shape, np.uint8)})
            one = {"x": np.full((*lead, *shape), 7, np.uint8)}
            blocked = server.stats()["store/push_blocked_count"]
            thread = threading.Thread(target=call, args=(one,))
            thread.start()
            while server.stats()["store/push_blocked_count"] == blocked:
                time.sleep(0.001)
            time.sleep(0.1)
            one["x"] = None
            junk = np.full(shape, 9, np.uint8)
            for _ in range(2):
                assert (server.sample(timeout=10).batch["x"] == 0).all()
            thread.join()
            assert (server.sample(timeout=10).batch["x"] == 7).all()
        """
    )


# ---- nothing leaks ---------------------------------------------------------------------------


def test_the_store_keeps_no_reference_to_a_sample() -> None:
    server = Server(GOOD, batch_size=1, num_buffers=2)
    array, tree = np.zeros(4, np.float32), {"pos": np.zeros(4, np.float32)}
    good = {"obs": {"pos": array}, "reward": np.float32(0)}
    bad = {"obs": {"pos": array}, "reward": np.float64(0)}
    before = sys.getrefcount(array), sys.getrefcount(good), sys.getrefcount(tree)
    for _ in range(10):
        server.submit(good)
        server.submit_batch({"obs": {"pos": array[None]}, "reward": np.zeros(1, np.float32)})
        with pytest.raises(SpecError):
            server.submit(bad)
        with pytest.raises(EchoTimeoutError):
            server.submit(good, timeout=0)
        server.sample(timeout=5)
        server.sample(timeout=5)
    assert (sys.getrefcount(array), sys.getrefcount(good), sys.getrefcount(tree)) == before


def test_servers_come_and_go_without_leaving_memory_behind(python) -> None:
    python(
        """
        import gc, resource
        import numpy as np
        from echo_core import Server

        def size():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[0]) * resource.getpagesize()

        tree = {"x": np.zeros((1 << 20,), np.uint8)}
        def once():
            server = Server(tree, batch_size=8, num_buffers=2)
            for _ in range(16):
                server.submit(tree)
            kept = server.sample(timeout=5).batch["x"][3, 5:9]
            del server
            return kept

        once()
        gc.collect()
        before = size()
        for _ in range(20):
            once()
        assert size() - before < 64 << 20, size() - before
        """
    )

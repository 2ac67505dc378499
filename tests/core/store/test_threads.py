"""Many writers and learners on one store: nothing is lost, torn or kept."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest
from stored import GOOD, inserted

from echo_core import EchoTimeoutError, Server, SpecError
from echo_testing.samples import Tally, example, sample, stacked
from echo_testing.threads import ended, in_thread

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.every_python]  # a server needs one


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
    bad = {"obs": {"pos": array}, "reward": np.float64(1e39)}
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

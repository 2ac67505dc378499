"""Waiting for space: who waits for whom, for how long, and what has gone in meanwhile."""

from __future__ import annotations

import time

import pytest
from stored import GOOD, inserted

from echo_core import ClosedError, EchoTimeoutError, Server
from echo_testing.samples import Tally, example, sample, stacked
from echo_testing.threads import ended, in_thread

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.every_python]  # a server needs one


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

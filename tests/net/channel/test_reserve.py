"""Samples that are made in place, in the frame that they are sent in."""

from __future__ import annotations

import gc
import math
import threading
from typing import Any

import pytest
from local_net import Consumer, connect, net, serve

from echo_core.base import waiting as base_waiting
from echo_core.base.errors import ClosedError, EchoTimeoutError, ForkError, SecurityError
from echo_net.channel.connection import ChannelConnection
from echo_net.gather import Row
from echo_testing.processes import forked, returns, until
from echo_testing.samples import Tally, sample

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.every_python]


def reserved(connection: ChannelConnection, maker: int, number: int, **options: Any) -> Row:
    """Filled, and not committed."""
    slot = connection.reserve(**options)
    assert slot is not None
    for name, value in sample(maker, number).items():
        slot.sample[name][...] = value
    return slot


def test_a_slot_that_is_held_keeps_nothing_else_back() -> None:
    """Neither what was committed before it, nor what is sent after it, nor waiting and closing."""
    with serve(batch_size=1, num_buffers=16) as server:
        connection = connect()
        first, second = reserved(connection, 1, 0), reserved(connection, 1, 1)
        first.commit()
        third = reserved(connection, 9, 9)  # behind the first, in its chunk
        connection.send(sample(2, 0))
        returns(connection.wait, 10)
        second.commit()
        returns(connection.wait, 10)
        assert connection.stats()["samples"] == 3
        returns(lambda: connection.close(10), 20)
        with pytest.raises(ClosedError, match="is closed"):
            third.commit()
        assert connection.uplink.window.gatherer.held == 0
        tally = Tally()
        for _ in range(3):
            tally.add(server.sample(10).batch)
        tally.check({1: 2, 2: 1})


def test_reserved_slots_take_room_of_the_window() -> None:
    with serve(batch_size=1, num_buffers=16), connect(max_inflight_msgs=2) as connection:
        held = [reserved(connection, 1, number) for number in range(2)]
        waits = r"reserved and not committed: 2"
        with pytest.raises(EchoTimeoutError, match=rf"reserve\(\) waits for .*{waits}"):
            connection.reserve(timeout=0.05)
        with pytest.raises(EchoTimeoutError, match=rf"send\(\) waits for .*{waits}"):
            connection.send(sample(2, 0), timeout=0.05)
        timer = threading.Timer(0.1, held.pop().abort)
        timer.start()
        connection.send(sample(2, 0), timeout=10)  # woken by that
        timer.join()
        held.pop().commit()
        connection.wait()
        assert connection.stats()["samples"] == 2


def test_a_slot_that_was_forgotten_takes_no_room() -> None:
    with serve(batch_size=1, num_buffers=16), connect(max_inflight_msgs=1) as connection:
        slot = reserved(connection, 1, 0)
        cycle: list[Any] = [slot]
        cycle.append(cycle)
        del slot, cycle
        gc.collect()
        reserved(connection, 1, 0, timeout=0).commit()


def test_a_slot_outlives_its_link() -> None:
    with serve(batch_size=1, num_buffers=16) as server:
        consumer = Consumer(server)
        with connect() as connection:
            for number in range(20):
                slot = reserved(connection, 1, number)
                if number % 5 == 0:
                    net.cut()
                slot.commit()
            until(lambda: connection.stats()["reconnects"], "it came back")
            connection.wait()
        consumer.check({1: 20})


def test_threads_that_reserve_and_send_together() -> None:
    with serve(batch_size=8, num_buffers=8) as server:
        consumer = Consumer(server)
        with connect(max_inflight_msgs=50) as connection:

            def reserving(maker: int) -> None:
                for number in range(400):
                    reserved(connection, maker, number).commit()

            def sending(maker: int) -> None:
                for number in range(400):
                    connection.send(sample(maker, number))

            workers = [threading.Thread(target=work, args=(maker,)) for maker, work in enumerate([reserving, reserving, sending])]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            connection.wait()
        until(lambda: consumer.tally.count == 1200, "all of them")
        consumer.stopping = True
        consumer.thread.join()
        consumer.tally.check(dict.fromkeys(range(3), 400), in_order=False)
        assert consumer.tally.numbers[2] == list(range(400))


def test_a_forked_child_cannot_end_a_slot_of_its_parent() -> None:
    with serve(batch_size=1) as server, connect() as connection:
        slot, other = reserved(connection, 1, 0), reserved(connection, 1, 9)

        def child() -> None:
            with pytest.raises(ForkError, match="make a new Client in the child"):
                slot.commit()
            other.abort()

        with connection.uplink.gate.lock:  # which the child has for ever
            forked(child)
        slot.commit()
        Tally().add(batch := server.sample(10).batch)
        assert batch["number"].tolist() == [0]
        other.abort()


def test_who_may_not_write_cannot_reserve() -> None:
    with serve(), connect(role="observer") as connection, pytest.raises(SecurityError, match="sends no experience"):
        connection.reserve()


def test_room_that_the_garbage_collector_gives_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can wake nobody."""
    monkeypatch.setattr(base_waiting, "LOG_AFTER", 3600.0)  # when a sleeper would look by itself
    with serve(batch_size=1, num_buffers=16) as server, connect(max_inflight_msgs=1) as connection:
        held = [reserved(connection, 9, 9)]
        looks: list[int] = []
        up = connection.uplink
        has_room = up.window.has_room
        up.window.has_room = lambda count: bool(looks.append(count)) or has_room(count)  # type: ignore[method-assign]
        sending = threading.Thread(target=connection.send, args=(sample(1, 0), math.inf))
        sending.start()
        until(lambda: len(looks) >= 2, "it sleeps")
        held.clear()
        sending.join(20)
        assert not sending.is_alive()
        assert server.sample(10) is not None

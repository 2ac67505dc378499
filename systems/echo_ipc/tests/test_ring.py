"""Rollouts: in order, whole, with the policy that was asked for; a slot belongs to who holds it."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from actors import new_ring, produce, rollout

from echo_core.base.errors import ClosedError, ConfigError, EchoTimeoutError, SpecError
from echo_ipc import Ring, RingFullError

LOCK = 128  # where Header in segment.hpp has its mutex


def number_in(ring: Ring) -> int:
    with ring.take(timeout=0) as slot:
        return int(slot.arrays["x"][0])


def test_what_is_put_is_taken_in_order() -> None:
    with new_ring() as ring:
        assert (ring.available(), ring.written) == (0, 0)
        assert [ring.put(rollout(1, number)) for number in range(3)] == [0, 1, 2]
        assert (ring.available(), ring.written) == (3, 3)
        for number in range(3):
            with ring.take(timeout=0) as slot:
                assert slot.number == number and (slot.arrays["x"] == number).all() and slot.arrays["info"]["producer"] == 1
        with pytest.raises(EchoTimeoutError, match="nothing came into"):
            ring.take(timeout=0)


def test_a_slot_is_filled_in_place() -> None:
    with new_ring() as ring:
        slot = ring.claim()
        slot.arrays["x"][:] = 3
        assert ring.available() == 0
        assert slot.commit() == 0 and not slot.held
        assert number_in(ring) == 3


def test_drop_oldest() -> None:
    with new_ring(slots=2) as ring:
        for number in range(5):
            assert ring.put(rollout(0, number)) == number
        assert ring.available() == 2 and ring.stats()["lost"] == 3
        with ring.take() as slot:
            assert (slot.number, slot.arrays["x"][0]) == (3, 3)
        assert number_in(ring) == 4


def test_drop_oldest_never_drops_what_is_being_read() -> None:
    with new_ring(slots=2) as ring:
        ring.put(rollout(0, 0))
        with ring.take() as slot:
            for number in range(1, 20):
                ring.put(rollout(0, number))
                assert (slot.arrays["x"] == 0).all()
        assert [number_in(ring), number_in(ring)] == [18, 19]


def test_drop_newest() -> None:
    with new_ring(slots=2, policy="drop_newest") as ring:
        assert [ring.put(rollout(0, number)) for number in range(4)] == [0, 1, None, None]
        assert ring.stats()["lost"] == 2 and ring.written == 4
        assert [number_in(ring), number_in(ring)] == [0, 1]


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
def test_every_rollout_that_was_committed_is_counted_once(policy: str) -> None:
    with new_ring(slots=2, policy=policy) as ring:
        for number in range(5):
            ring.put(rollout(0, number))
        numbers = []
        for _ in range(2):
            with ring.take(timeout=0) as slot:
                numbers.append(slot.number)
        figures = ring.stats()
        assert (figures["written"], figures["taken"], figures["lost"]) == (5, 2, 3)
        assert numbers == ([3, 4] if policy == "drop_oldest" else [0, 1])
        assert ring.put(rollout(0, 5)) == 5, "consumers see the gap"


def test_error() -> None:
    with new_ring(slots=2, policy="error") as ring:
        ring.put(rollout(0, 0))
        slot = ring.claim()
        with pytest.raises(RingFullError, match="has 2 rollouts that nobody has taken") as caught:
            ring.claim()
        assert isinstance(caught.value, queue.Full)
        slot.abort()
        ring.put(rollout(0, 1))
        assert [number_in(ring), number_in(ring)] == [0, 1]


def test_block() -> None:
    with new_ring(slots=2, producers=2, policy="block") as ring:
        ring.put(rollout(0, 0))
        ring.put(rollout(0, 1))
        with pytest.raises(EchoTimeoutError, match="had no room for 0.01 s"):
            ring.claim(timeout=0.01)
        thread = threading.Thread(target=lambda: ring.put(rollout(0, 2), timeout=30))
        thread.start()
        time.sleep(0.05)
        assert ring.written == 2
        assert number_in(ring) == 0
        thread.join()
        assert [number_in(ring), number_in(ring)] == [1, 2]


def test_what_two_producers_claim_has_room() -> None:
    """With one place left, the second claim must wait, or two rollouts would be committed into it."""
    with new_ring(slots=2, producers=2, policy="block") as ring:
        ring.put(rollout(0, 0))
        first = ring.claim(timeout=0)
        with pytest.raises(EchoTimeoutError):
            ring.claim(timeout=0.01)
        first.abort()
        ring.claim(timeout=0).abort()


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_two_producers_that_wait_lose_nothing(how: str) -> None:
    context = multiprocessing.get_context(how)
    count = 3000
    with new_ring(slots=3, producers=2, policy="block") as ring:
        processes = [context.Process(target=produce, args=(ring, producer, count)) for producer in range(2)]
        for process in processes:
            process.start()
        seen: dict[int, list[int]] = {0: [], 1: []}
        for number in range(2 * count):
            with ring.take(timeout=60) as slot:
                assert slot.number == number
                x = slot.arrays["x"]
                assert (x == x[0]).all(), "mixed"
                seen[int(slot.arrays["info"]["producer"])].append(int(x[0]))
        for process in processes:
            process.join()
            assert process.exitcode == 0
        assert seen == {0: list(range(count)), 1: list(range(count))}
        assert ring.stats()["lost"] == 0 and ring.available() == 0


def test_a_block_that_raises_gives_the_slot_back() -> None:
    with new_ring(slots=1, policy="error") as ring:
        with pytest.raises(ZeroDivisionError), ring.claim():
            raise ZeroDivisionError
        assert ring.available() == 0
        ring.put(rollout(0, 1))


def test_a_slot_that_nobody_has_any_more_is_given_back() -> None:
    with new_ring(slots=1, policy="error") as ring:
        ring.claim()
        gc.collect()
        ring.put(rollout(0, 1))
        ring.take()
        gc.collect()
        ring.put(rollout(0, 2))


@pytest.mark.parametrize("how", ["drop", "give back"])
@pytest.mark.parametrize("side", ["claim", "take"])
def test_a_slot_is_given_back_while_another_process_has_the_lock(side: str, how: str) -> None:
    """That process may be stopped with the lock, so nobody waits for it here."""
    with new_ring(slots=1, policy="block", consumers=2) as ring:
        ring.put(rollout(0, 1))
        slot: Any = ring.take() if side == "take" else ring.take().release() or ring.claim()
        with the_lock_of(ring):
            if how == "give back":
                slot.release() if side == "take" else slot.abort()
            del slot
            gc.collect()
        assert ring.put(rollout(0, 2), timeout=30) == 1 and number_in(ring) == 2
        assert ring.stats()["taken"] == 2 and len([ring.claim(timeout=0)]) == 1


@contextmanager
def the_lock_of(ring: Ring) -> Iterator[None]:
    """The lock in its shared memory, which belongs to a thread here, until the end."""
    libc = ctypes.CDLL(None)
    mutex = ctypes.c_void_p(np.frombuffer(ring._memory.mapping, np.uint8).ctypes.data + LOCK)
    ready, over, outcomes = threading.Event(), threading.Event(), list[int]()

    def hold() -> None:
        outcomes.append(libc.pthread_mutex_lock(mutex))
        ready.set()
        over.wait()
        outcomes.append(libc.pthread_mutex_unlock(mutex))

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert outcomes == [0, 0]


def test_a_slot_in_a_cycle_is_given_back() -> None:
    """The collector takes apart what is in a cycle, in an order of its own, before the slot is given back."""
    with new_ring(slots=1, policy="block") as ring:
        other = Ring(None, name=ring.name)
        native = other._use()
        hold = native.claim(0)[1]
        native.watch = [hold].pop
        other._live = None
        other._memory.release()
        del other, native, hold
        gc.collect()
        ring.claim(timeout=0).abort()


def test_a_slot_is_given_back_once() -> None:
    with new_ring() as ring:
        slot = ring.claim()
        slot.commit()
        for call in (slot.commit, slot.abort, lambda: slot.write(rollout(0, 0))):
            with pytest.raises(ClosedError, match="given back already"):
                call()
        taken = ring.take()
        taken.release()
        with pytest.raises(ClosedError, match="given back already"):
            taken.release()


def test_more_holders_than_it_was_made_for() -> None:
    with new_ring(slots=1, producers=1, consumers=1) as ring:
        slots = [ring.claim(timeout=0) for _ in range(3)]
        with pytest.raises(EchoTimeoutError, match="made for 1 producers and 1 consumers"):
            ring.claim(timeout=0.01)
        thread = threading.Timer(0.05, slots[0].abort)
        thread.start()
        ring.claim(timeout=30).abort()
        thread.join()
        for slot in slots[1:]:
            slot.abort()


def test_a_slot_belongs_to_the_process_that_claimed_it() -> None:
    with new_ring() as ring:
        slot = ring.claim()
        slot.arrays["x"][:] = 9
        child = os.fork()
        if child == 0:
            try:
                slot.commit()
            except ClosedError as error:
                os._exit(7 if "claimed" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert slot.commit() == 0
        assert number_in(ring) == 9


def test_a_forked_child_claims_for_itself() -> None:
    with new_ring(slots=2, policy="block") as ring:
        child = os.fork()
        if child == 0:
            ring.put(rollout(0, 4))
            os._exit(0)
        os.waitpid(child, 0)
        assert number_in(ring) == 4


def test_wrong_rollouts_are_named_and_the_slot_comes_back() -> None:
    with new_ring(slots=1, policy="error") as ring:
        wrong = rollout(0, 0)
        wrong["x"] = wrong["x"][:5]
        with pytest.raises(SpecError, match=r"'x' must be int64\[1000\], but is int64\[5\]"):
            ring.put(wrong)
        ring.put(rollout(0, 1))
        assert number_in(ring) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"slots": 0}, "slots must be at least 1"),
        ({"producers": 0}, "producers must be at least 1"),
        ({"consumers": -1}, "consumers must be at least 1"),
        ({"policy": "drop"}, "policy must be one of drop_oldest, block, drop_newest, error, not 'drop'"),
        ({"slots": 5000}, "at most 4096"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        new_ring(**options)


def test_wait() -> None:
    with new_ring() as ring:
        assert not ring.wait(timeout=0.01)
        thread = threading.Timer(0.05, lambda: ring.put(rollout(0, 0)))
        thread.start()
        assert ring.wait(timeout=30) and ring.available() == 1
        thread.join()


@pytest.mark.parametrize("spin", [None, 0.0, 1e-4])
def test_ping_pong(spin: float | None) -> None:
    fields = {"n": ((), "int64")}
    with Ring(fields, 2, policy="block", spin=spin) as there, Ring(fields, 2, policy="block", spin=spin) as back:

        def answer() -> None:
            for _ in range(200):
                with there.take(timeout=30) as slot:
                    back.put({"n": slot.arrays["n"] + 1}, timeout=30)

        thread = threading.Thread(target=answer)
        thread.start()
        for number in range(200):
            there.put({"n": np.int64(number)}, timeout=30)
            with back.take(timeout=30) as slot:
                assert slot.arrays["n"] == number + 1
        thread.join()


def test_a_side_that_waits_long_stops_spinning() -> None:
    most = 0 if len(os.sched_getaffinity(0)) == 1 else 50_000  # on one processor nothing spins
    with Ring({"n": ((), "int64")}, 2, policy="block") as ring:
        native = ring._use()
        assert native.spins == (most, most)
        for _ in range(7):
            assert not ring.wait(timeout=0.002)
        assert native.spins == (most, 0), "for takes"
        for number in range(2):
            ring.put({"n": np.int64(number)})
        for _ in range(7):
            with pytest.raises(EchoTimeoutError):
                ring.claim(timeout=0.002)
        assert native.spins == (0, 0), "and for claims"
        with pytest.raises(EchoTimeoutError):
            ring.claim(timeout=0)
        assert native.spins == (0, 0), "a look that waits for nothing says nothing"
        deadline = time.monotonic() + 60
        while native.spins[0] != most:  # a short wait begins it again; on a busy machine, not every wait is short
            assert time.monotonic() < deadline
            freed = threading.Thread(target=lambda: ring.take().release())
            freed.start()
            ring.put({"n": np.int64(2)}, timeout=30)
            freed.join()


def test_after_close() -> None:
    ring = new_ring()
    ring.put(rollout(0, 6))
    slot = ring.take()
    ring.cleanup()
    for call in (ring.available, ring.claim, ring.take, ring.wait, ring.stats, lambda: ring.written, slot.release):
        with pytest.raises(ClosedError):
            call()
    assert (slot.arrays["x"] == 6).all(), "what is borrowed stays readable"


def test_a_closed_ring_gives_its_slots_back() -> None:
    with new_ring(slots=1, policy="error") as ring:
        other = Ring(None, name=ring.name)
        slot = other.claim()
        other.close()
        del slot
        ring.put(rollout(0, 1))

"""RolloutRingBuffer: rollouts arrive whole and in order, and who reads or writes one has it alone."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest

from echo_core.base.errors import ClosedError, ConfigError, EchoTimeoutError, SpecError
from echo_ipc import CollectorDiedError, RingFullError, RolloutRingBuffer

SIZES = {"num_envs": 4, "num_steps": 3, "obs_dim": 5, "action_dim": 2}
FIELDS = {"obs", "actions", "log_probs", "rewards", "dones", "truncated", "last_obs"}


def fill(ring: RolloutRingBuffer, number: float) -> None:
    for array in ring.write_buffer.values():
        array[...] = number
    ring.signal_write_done()


def value(ring: RolloutRingBuffer) -> float:
    views = ring.read_numpy_views()
    numbers = {float(number) for array in views.values() for number in array.flat}
    assert len(numbers) == 1, "mixed"
    return numbers.pop()


def take(ring: RolloutRingBuffer) -> float:
    number = value(ring)
    ring.advance_read()
    return number


def test_fields_and_shapes() -> None:
    ring = RolloutRingBuffer(**SIZES)
    assert set(ring.slot_shapes) == set(ring.name) == set(ring.write_buffer) == FIELDS and len(set(ring.name.values())) == 1
    assert ring.slot_shapes["obs"] == (4, 3, 5) and ring.slot_shapes["last_obs"] == (4, 5) and ring.slot_shapes["rewards"] == (4, 3)
    assert all(array.dtype == np.float32 for array in ring.write_buffer.values())
    ring.cleanup()
    ring.cleanup()
    more = RolloutRingBuffer(**SIZES, critic_dim=6, fields={"step": ((4,), "int64"), "rewards": ((4, 3), "float64")})
    assert set(more.write_buffer) == FIELDS | {"critic", "last_critic", "step"}
    assert more.slot_shapes["critic"] == (4, 3, 6) and more.write_buffer["rewards"].dtype == np.float64
    more.cleanup()


def test_the_oldest_are_dropped_by_default() -> None:
    ring = RolloutRingBuffer(**SIZES, num_slots=2)
    for number in range(4):
        fill(ring, number)
    assert ring.available() == 2 and ring.lost == 2
    assert [take(ring), take(ring)] == [2, 3] and ring.available() == 0
    ring.cleanup()


def test_what_is_being_read_stays_whatever_is_written() -> None:
    ring = RolloutRingBuffer(**SIZES, num_slots=2)
    fill(ring, 1)
    views, slot = ring.read_numpy_views(), ring.read_slot
    for number in range(2, 9):
        assert ring.write_slot != slot
        fill(ring, number)
        assert value(ring) == 1 and (views["obs"] == 1).all() and ring.read_slot == slot
    ring.advance_read()
    assert [take(ring), take(ring)] == [7, 8]
    ring.cleanup()


def test_policies() -> None:
    ring = RolloutRingBuffer(**SIZES, num_slots=1, policy="error")
    fill(ring, 1)
    with pytest.raises(RingFullError):
        ring.write_buffer  # noqa: B018
    assert take(ring) == 1
    fill(ring, 2)
    assert take(ring) == 2
    ring.cleanup()
    ring = RolloutRingBuffer(**SIZES, num_slots=1, policy="drop_newest")
    fill(ring, 1)
    fill(ring, 2)
    assert take(ring) == 1 and ring.lost == 1 and ring.policy == "drop_newest"
    ring.cleanup()


def test_positions_look_like_values() -> None:
    ring = RolloutRingBuffer(**SIZES, num_slots=2)
    for number in range(3):
        ring.signal_write_done()
        assert ring._write_ptr.value == number + 1
    assert ring._read_ptr.value == 1
    ring.advance_read()
    with ring._read_ptr.get_lock():
        assert ring._read_ptr.value == 2
    other = RolloutRingBuffer(**SIZES, num_slots=2, create=False, shm_name_prefix=ring.name)
    other.attach_sync_primitives(ring._write_ptr, pickle.loads(pickle.dumps(ring._read_ptr)))
    assert other.available() == 1
    third = RolloutRingBuffer(**SIZES)
    with pytest.raises(SpecError, match="these pointers belong to"):
        other.attach_sync_primitives(third._write_ptr, third._read_ptr)
    for each in (third, other, ring):
        each.cleanup()


def test_nothing_to_read() -> None:
    ring = RolloutRingBuffer(**SIZES)
    ring.advance_read()
    assert not ring.wait_for_data(timeout=0.01) and ring.available() == 0
    with pytest.raises(EchoTimeoutError, match="there is no rollout to read"):
        ring.read_numpy_views()
    ring.close()
    with pytest.raises(ClosedError):
        ring.available()
    ring.cleanup()


def test_a_wait_ends_when_the_producers_are_dead_but_not_before_what_they_wrote_is_found() -> None:
    ring = RolloutRingBuffer(**SIZES)
    ring.watch_producers(lambda: False)
    with pytest.raises(CollectorDiedError, match="the producers of .* are dead"):
        ring.wait_for_data(timeout=600)
    fill(ring, 1)
    assert ring.wait_for_data(timeout=600) and take(ring) == 1
    ring.watch_producers(None)
    assert not ring.wait_for_data(timeout=0)
    ring.cleanup()


def test_arguments() -> None:
    ring = RolloutRingBuffer(**SIZES)
    with pytest.raises(ConfigError, match="needs shm_name_prefix"):
        RolloutRingBuffer(**SIZES, create=False)
    with pytest.raises(SpecError, match=r"'obs' of .* is float32\[4, 3, 5\], but float32\[4, 3, 7\] was expected"):
        RolloutRingBuffer(**(SIZES | {"obs_dim": 7}), create=False, shm_name_prefix=ring.name)
    with pytest.raises(SpecError, match="num_slots is 5, but the ring was made with 4"):
        RolloutRingBuffer(**SIZES, num_slots=5, create=False, shm_name_prefix=ring.name)
    with pytest.raises(SpecError, match="more than one name"):
        RolloutRingBuffer(**SIZES, create=False, shm_name_prefix={"obs": "a", "rewards": "b"})
    with pytest.warns(UserWarning, match="shm_name_prefix is ignored"):
        RolloutRingBuffer(**SIZES, shm_name_prefix={"obs": "a"}).cleanup()
    ring.cleanup()


def produce(ring: RolloutRingBuffer, first: int, count: int) -> None:
    for number in range(first, first + count):
        fill(ring, number)


@pytest.mark.parametrize("how", ["spawn", "forkserver", "fork"])
def test_two_producers_lose_nothing_with_block(how: str) -> None:
    ring = RolloutRingBuffer(**SIZES, num_slots=2, policy="block", producers=2)
    context: Any = multiprocessing.get_context(how)
    processes = [context.Process(target=produce, args=(ring, first, 50)) for first in (0, 1000)]
    for process in processes:
        process.start()
    found = []
    while len(found) < 100:
        assert ring.wait_for_data(timeout=60)
        found.append(int(take(ring)))
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert [n for n in found if n < 1000] == list(range(50)) and [n for n in found if n >= 1000] == list(range(1000, 1050)) and ring.lost == 0
    ring.cleanup()

"""Rollouts between two processes: how long one takes, and how many bytes go through."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from echo_ipc import Ring, RolloutRingBuffer

from .cases import Case, Slice
from .rivals import unilab_rl

spawning = multiprocessing.get_context("spawn")

LARGE = (256, 64, 64, 29)  # environments, steps, width of observations and of actions: 6.5 MB
SLOTS = 3
FIRST = 20  # round trips of the first slice, which only tells how many fit in one


def _theirs(shape: tuple[int, ...], slots: int, attach: Any = None) -> Any:
    ring = unilab_rl("rollout_ring_buffer").RolloutRingBuffer(*shape, num_slots=slots, create=attach is None, shm_name_prefix=attach and attach[0])
    if attach:
        ring.attach_sync_primitives(*attach[1:])
    return ring


def _place(ring: Any) -> tuple[Any, ...]:
    return ring.name, ring._write_ptr, ring._read_ptr


class _Partner:
    """Another process, which does something so many times when it is told to."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        self._link, there = spawning.Pipe()
        self._process = spawning.Process(target=work, args=(there, *arguments), daemon=True)
        self._process.start()

    def begin(self, count: int) -> None:
        self._link.send(count)

    def end(self) -> None:
        self._link.send(0)
        self._process.join()


# ---- there and back


def _answer(link: Any, rings: tuple[Any, Any], shape: Any = None) -> None:
    there, back = rings if shape is None else (_theirs(shape, 2, place) for place in rings)
    while count := link.recv():
        for _ in range(count):
            there.wait_for_data()
            value = there.read_numpy_views()["obs"].copy()
            there.advance_read()
            back.write_buffer["obs"][:] = value
            back.signal_write_done()


def _ask(rings: list[Any]) -> Callable[[], None]:
    def once() -> None:
        rings[0].write_buffer["obs"][:] = 1
        rings[0].signal_write_done()
        rings[1].wait_for_data()
        rings[1].advance_read()

    return once


def _answer_asleep(link: Any, there: Any, back: Any) -> None:
    while count := link.recv():
        for _ in range(count):
            with there.take(timeout=60) as slot:
                value = slot.arrays["obs"].copy()
            back.put({"obs": value}, timeout=60)


def _round_trips(once: Callable[[], None], partner: _Partner) -> Slice:
    def run(count: int) -> list[float]:
        partner.begin(count)
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            once()
            times.append(time.perf_counter() - begun)
        return times

    usual = statistics.median(run(FIRST)[FIRST // 2 :])

    def measured(seconds: float) -> float:
        return statistics.median(run(max(FIRST, int(seconds / usual)))) / 2

    return measured


def ping() -> Iterator[Case]:
    shape = (1, 1, 1, 1)
    ours = [RolloutRingBuffer(*shape, num_slots=2) for _ in range(2)]
    sleeping = [Ring({"obs": ((1,), "float32")}, 2, policy="block", spin=0.0) for _ in range(2)]
    theirs = [_theirs(shape, 2) for _ in range(2)] if unilab_rl("rollout_ring_buffer") else []
    partners = [_Partner(_answer, tuple(ours)), _Partner(_answer_asleep, *sleeping)]
    value = {"obs": np.ones(1, np.float32)}

    def asleep() -> None:
        sleeping[0].put(value, timeout=60)
        sleeping[1].take(timeout=60).release()

    rival: Slice | None = None
    if theirs:
        partners.append(_Partner(_answer, tuple(map(_place, theirs)), shape))
        rival = _round_trips(_ask(theirs), partners[-1])
    try:
        yield Case("ping-pong", "us", _round_trips(_ask(ours), partners[0]), rival, must=30, scale=1e6, lower=True)
        yield Case("ping-pong, both asleep", "us", _round_trips(asleep, partners[1]), rival, scale=1e6, lower=True)
    finally:
        for partner in partners:
            partner.end()
        for ring in [*ours, *sleeping, *theirs]:
            ring.cleanup()


# ---- large ones, one after another


def _source() -> dict[str, np.ndarray]:
    envs, steps, obs, actions = LARGE
    shapes = {"obs": (envs, steps, obs), "actions": (envs, steps, actions), "last_obs": (envs, obs)}
    shapes |= dict.fromkeys(("log_probs", "rewards", "dones", "truncated"), (envs, steps))
    return {name: np.random.default_rng(0).random(shape, np.float32) for name, shape in shapes.items()}


def _produce(link: Any, ring: Any, place: Any = None) -> None:
    """Every rollout has its number in the first and the last element of each array."""
    source, number = _source(), 0
    if place:
        ring = _theirs(LARGE, SLOTS + 1, place)
    while count := link.recv():
        for _ in range(count):
            number = (number + 1) % (1 << 20)
            for array in source.values():
                array.flat[0] = array.flat[-1] = number
            while place and ring.available() >= SLOTS:  # the slot that is written must not be the one that is read
                time.sleep(1e-4)
            for name, array in ring.write_buffer.items():
                np.copyto(array, source[name])
            ring.signal_write_done()


def stream() -> Iterator[Case]:
    target = {name: np.empty_like(array) for name, array in _source().items()}
    size = sum(array.nbytes for array in target.values())
    rings: list[Any] = [RolloutRingBuffer(*LARGE, num_slots=SLOTS, policy="block")]
    partners = [_Partner(_produce, rings[0])]
    if unilab_rl("rollout_ring_buffer"):
        rings.append(_theirs(LARGE, SLOTS + 1))
        partners.append(_Partner(_produce, None, _place(rings[1])))

    def side(ring: Any, partner: _Partner) -> Slice:
        number = 0

        def run(count: int) -> float:
            nonlocal number
            partner.begin(count)
            begun = time.perf_counter()
            for _ in range(count):
                ring.wait_for_data()
                for name, array in ring.read_numpy_views().items():
                    np.copyto(target[name], array)
                ring.advance_read()
                number = (number + 1) % (1 << 20)
                found = {float(array.flat[end]) for array in target.values() for end in (0, -1)}
                if found != {number}:
                    raise SystemExit(f"rollout {number} is lost or mixed: its arrays are of {sorted(found)}")
            return time.perf_counter() - begun

        run(FIRST)
        usual = run(FIRST) / FIRST

        def measured(seconds: float) -> float:
            count = max(FIRST, int(seconds / usual))
            return size * count / run(count)

        return measured

    sides = [side(ring, partner) for ring, partner in zip(rings, partners)]
    try:
        yield Case("stream of 6.5 MB", "GB/s", sides[0], sides[1] if len(sides) > 1 else None, must=1.0)
        assert rings[0].lost == 0
    finally:
        for partner in partners:
            partner.end()
        for ring in rings:
            ring.cleanup()

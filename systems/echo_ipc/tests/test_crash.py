"""Processes that are killed or stopped at any moment: nothing is torn, nobody waits for ever, and nothing is left behind."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import actors
import pytest
from actors import add_for_ever, batch, check_value, new_cell, new_ring, new_rows, rollout, value, write_for_ever
from held_memory import held

from echo_core.base.errors import EchoTimeoutError
from echo_ipc import Cell, SegmentGoneError
from echo_testing import stress
from echo_testing.processes import stop

context = multiprocessing.get_context("fork")
WIDE = 300_000  # numbers: 2.4 MB, so a kill is likely to come in the middle


@contextmanager
def running(target: Callable[..., None], *arguments: Any, ready: bool = True) -> Iterator[BaseProcess]:
    """A process, once it says that it is at work; it is killed at the end."""
    event = context.Event()
    process = context.Process(target=target, args=(*arguments, event) if ready else arguments)
    process.start()
    try:
        assert not ready or event.wait(60)
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_writers_that_are_killed_leave_a_whole_value() -> None:
    kills, chance = 0, random.Random(1)
    with new_cell(WIDE) as cell:
        cell.write(value(0, WIDE))
        last, end = 0, time.monotonic() + float(stress.seconds(2))
        while time.monotonic() < end:
            with running(write_for_ever, cell, ready=False):
                time.sleep(chance.uniform(0.02, 0.12))
                tree, version = cell.read()
                assert tree is not None and version >= last
                check_value(tree)
                last = version
            kills += 1
            tree, version = cell.read()
            assert tree is not None and version >= last
            check_value(tree)
        assert cell.write(value(5, WIDE), timeout=30) > last and kills > 3


def test_a_writer_that_is_stopped_holds_up_no_reader() -> None:
    with new_cell(WIDE) as cell:
        cell.write(value(0, WIDE))
        for _ in range(5):
            with running(write_for_ever, cell) as process:
                stop(process.pid)
                tree, _ = cell.read()
                assert tree is not None
                check_value(tree)
                try:  # in most rounds it was stopped in the middle
                    cell.write(value(1, WIDE), timeout=0.1)
                except EchoTimeoutError as error:
                    assert "is that process stopped?" in str(error)
                os.kill(process.pid or 0, signal.SIGCONT)
        assert cell.write(value(2, WIDE), timeout=30)


def test_a_claim_of_a_dead_producer_is_taken_back() -> None:
    with new_ring(slots=1, policy="block") as ring:
        with running(actors.claim_and_wait, ring), pytest.raises(EchoTimeoutError):
            ring.claim(timeout=0.1)
        assert ring.put(rollout(0, 3), timeout=30) == 0
        with ring.take(timeout=30) as slot:
            assert (slot.arrays["x"] == 3).all()
        assert ring.stats()["abandoned"] == 1


@pytest.mark.parametrize("waits", [True, False])
def test_a_rollout_of_a_dead_consumer_is_taken_again(waits: bool) -> None:
    with new_ring(slots=2, consumers=2) as ring:
        ring.put(rollout(0, 3))
        ring.put(rollout(0, 4))
        with running(actors.take_and_wait, ring):
            assert ring.available() == 1
        if waits:
            ring.take(timeout=0).release() if ring.available() == 1 else None
            time.sleep(0.03)
            assert ring.wait(timeout=30)
            expected = [0]
        else:
            time.sleep(0.03)
            expected = [1, 0]
        found = []
        for _ in expected:
            with ring.take(timeout=30) as slot:
                found.append(slot.number)
        assert sorted(found) == sorted(expected)
        assert ring.stats()["returned"] == 1


def test_a_stopped_producer_keeps_its_claim() -> None:
    with new_ring(slots=1, policy="block") as ring, running(actors.claim_and_wait, ring) as process:
        stop(process.pid)
        with pytest.raises(EchoTimeoutError, match="had no room"):
            ring.claim(timeout=0.2)
        assert ring.stats()["abandoned"] == 0
        os.kill(process.pid or 0, signal.SIGCONT)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_rows_of_killed_adders_are_never_sampled() -> None:
    chance = random.Random(2)
    with new_rows(5000) as rows:
        rows.add(batch(0, 100))
        end = time.monotonic() + float(stress.seconds(2))
        while time.monotonic() < end:
            with running(add_for_ever, rows, ready=False):
                time.sleep(chance.uniform(0.02, 0.08))
                _check(rows)
            _check(rows)
        first = rows.committed
        assert rows.add(batch(first, 100), timeout=30) == first
        _check(rows)


def _check(rows: Any) -> None:
    found, numbers = rows.sample(500)
    assert (found["number"] == numbers).all() and (found["obs"] == numbers[:, None]).all()


def test_the_maker_is_killed_and_who_is_attached_goes_on() -> None:
    code = f"""
import sys, time
sys.path.insert(0, {str(os.path.dirname(actors.__file__))!r})
from actors import new_cell, value
cell = new_cell()
cell.write(value(4))
print(cell.name, flush=True)
time.sleep(600)
"""
    maker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    name = maker.stdout.readline().strip()
    with maker.stdout, Cell(None, name=name) as cell:
        maker.kill()
        maker.wait()
        tree, _ = cell.read()
        assert tree is not None and check_value(tree) == 4
        cell.write(value(5))
        with pytest.raises(SegmentGoneError, match="does not run here"):
            Cell(None, name=name)


def _attach_and_die(name: str) -> None:
    cell = Cell(None, name=name)
    cell.write(value(1))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_rounds_of_make_attach_and_kill_leave_nothing() -> None:
    before, descriptors = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    end, rounds = time.monotonic() + float(stress.seconds(2)), 0
    while time.monotonic() < end:
        cell, ring, rows = new_cell(), new_ring(), new_rows()
        process = context.Process(target=_attach_and_die, args=(cell.name,))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert cell.version == 1
        for handle in (cell, ring, rows):
            handle.cleanup()
        process.close()
        rounds += 1
        del cell, ring, rows, handle, process
        assert held() == [], rounds
    assert len(os.listdir("/proc/self/fd")) == descriptors and set(os.listdir("/dev/shm")) == before and rounds > 3


def test_ctrl_c_ends_every_wait() -> None:
    code = f"""
import os, signal, sys, threading
sys.path.insert(0, {str(os.path.dirname(actors.__file__))!r})
from actors import new_cell, new_ring, new_rows
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
cell, ring, rows = new_cell(), new_ring(slots=1, policy="block"), new_rows()
slot = ring.claim()
for wait in (cell.wait, lambda: cell.read(newer_than=0), ring.take, ring.wait, ring.claim, rows.wait):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        wait()
    except KeyboardInterrupt:
        print("ended")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["ended"] * 6, done.stderr


def test_ctrl_c_while_a_lock_is_taken_leaves_it_free() -> None:
    """Ctrl-C comes while a thread waits for the lock of a table, and the next thing that happens is that it gets the lock."""
    code = """
import os, signal, threading, time
import numpy as np
from echo_ipc import SharedObsNormStats, _native
signal.signal(signal.SIGINT, signal.default_int_handler)
stats = SharedObsNormStats()

def hold(ready):
    with _native.Alone(stats._turn._use()):
        ready.set()
        time.sleep(0.01)  # the main thread is most likely waiting for the lock by now
        os.kill(os.getpid(), signal.SIGINT)

for _ in range(20):
    ready = threading.Event()
    holder = threading.Thread(target=hold, args=(ready,))
    try:
        holder.start()
        ready.wait()
        stats.put(1)
        time.sleep(60)
    except KeyboardInterrupt:
        pass
    holder.join()
    stats._turn.add({"turn": np.zeros(1, np.uint8)}, timeout=30)
print("free")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["free"], done.stderr

"""Without a runner, too: a wait ends at once when nobody is left who could end it, says what became of them, and finds what they did before."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from actors import new_cell, new_ring, new_rows, rollout, use_all, value

from echo_core.base.errors import ClosedError, ConnectionClosedError
from echo_ipc import Cell, Ring, Rows

pytestmark = pytest.mark.every_python
METHODS = ["spawn", "forkserver", "fork"]


def use_all_and_die(cell: Cell, ring: Ring, rows: Rows) -> None:
    use_all(cell, ring, rows)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("how", METHODS)
def test_those_that_wrote_are_dead(how: str) -> None:
    with new_cell() as cell, new_ring() as ring, new_rows() as rows:
        process = multiprocessing.get_context(how).Process(target=use_all_and_die, args=(cell, ring, rows))
        process.start()
        with ring.take(timeout=600) as slot:
            assert slot.arrays["info"]["producer"] == process.pid
        waits: list[Callable[[], Any]] = [
            lambda: ring.take(timeout=600),
            lambda: ring.wait(timeout=600),
            lambda: cell.wait(newer_than=1, timeout=600),
            lambda: cell.read(newer_than=1, timeout=600),
            lambda: rows.wait(more_than=10, timeout=600),
        ]
        for wait in waits:
            with pytest.raises(ConnectionClosedError, match=f"no process is left that wrote to .*process {process.pid} (was killed by signal 9|has ended)"):
                wait()
        process.join()


def die_at_once(*handles: Any) -> None:
    os._exit(3)


def test_one_that_was_started_with_it_dies_before_it_does_anything() -> None:
    with new_ring() as ring:
        process = multiprocessing.get_context("spawn").Process(target=die_at_once, args=(ring,))
        process.start()
        with pytest.raises(ConnectionClosedError, match=f"process {process.pid} has ended"):
            ring.take(timeout=600)
        process.join()


def take_and_end(ring: Ring, closing: bool) -> None:
    ring.take(timeout=60).release()
    if closing:
        ring.close()
        signal.pause()


@pytest.mark.parametrize("closing", [False, True])
def test_the_one_that_takes_is_dead_or_has_closed(closing: bool) -> None:
    with new_ring(slots=1, policy="block") as ring:
        process = multiprocessing.get_context("spawn").Process(target=take_and_end, args=(ring, closing))
        process.start()
        with pytest.raises(
            ConnectionClosedError, match="no process is left that took from .*they closed it" if closing else "no process is left that took from"
        ):
            for number in range(10):
                ring.put(rollout(0, number), timeout=600)
        process.kill()
        process.join()


def wait_for_a_version(cell: Cell, answers: Any) -> None:
    answers.put("waits")
    try:
        cell.read(newer_than=1)
    except ConnectionClosedError as error:
        answers.put(str(error))


def test_the_learner_cleans_up() -> None:
    context = multiprocessing.get_context("spawn")
    cell, answers = new_cell(), context.Queue()
    cell.write(value(1))
    process = context.Process(target=wait_for_a_version, args=(cell, answers))
    process.start()
    assert answers.get(timeout=60) == "waits"
    cell.cleanup()
    assert "they closed it" in answers.get(timeout=600)
    process.join()
    answers.close()
    answers.join_thread()


def put_and_end(ring: Ring, producer: int) -> None:
    ring.put(rollout(producer, 1), timeout=60)


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_while_another_lives_or_is_being_started_a_wait_goes_on(how: str) -> None:
    """Each producer ends after one rollout, and the next one is started after it has ended."""
    context = multiprocessing.get_context(how)
    with new_ring() as ring:
        for number in range(3):
            process = context.Process(target=put_and_end, args=(ring, number))
            process.start()
            with ring.take(timeout=600) as slot:
                assert slot.arrays["info"]["producer"] == number
            process.join()


def test_what_this_process_writes_itself_can_still_come() -> None:
    with new_ring() as ring:
        process = multiprocessing.get_context("spawn").Process(target=put_and_end, args=(ring, 1))
        process.start()
        process.join()
        ring.take(timeout=0).release()
        ring.put(rollout(2, 1))
        ring.take(timeout=0).release()
        assert not ring.wait(timeout=0.3)


def test_a_forked_child_that_did_nothing_is_nobody() -> None:
    with new_ring() as ring:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        assert not ring.wait(timeout=0.3)


def test_more_processes_than_the_list_holds() -> None:
    with new_ring() as ring:
        for _ in range(140):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        process = multiprocessing.get_context("fork").Process(target=put_and_end, args=(ring, 1))
        process.start()
        ring.take(timeout=60).release()
        with pytest.raises(ConnectionClosedError, match="no process is left"):
            ring.take(timeout=600)
        process.join()


def test_watch() -> None:
    error = ZeroDivisionError("the other end is gone")
    with new_ring() as ring:
        ring.watch(lambda: error)
        with pytest.raises(ZeroDivisionError):
            ring.take(timeout=600)
        assert ring.ended() is error
        ring.put(rollout(1, 1))
        ring.take(timeout=600).release()
        ring.watch(None)
        assert ring.ended() is None and not ring.wait(timeout=0.1)
    with pytest.raises(ClosedError):
        ring.ended()

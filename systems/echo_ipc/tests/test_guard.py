"""A process ends when the one that it is guarded against is gone, whatever it is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from echo_ipc import _native

GUARDED = """
import os, sys, threading, time
from echo_ipc._native import Guard, start_of
parent = int(sys.argv[1])
guard = Guard(parent, start_of(parent), grace=float(sys.argv[2]), code=9)
print(os.getpid(), flush=True)
{body}
"""
# A Python that never gives its interpreter's lock away: one call into C, holding it.
BUSY = "import ctypes; ctypes.PyDLL(None).pause()"
TOLD = "assert guard.wait(60); print('told', flush=True); os._exit(3)"


@pytest.fixture
def parent() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def guarded(parent: int, body: str, grace: float) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", GUARDED.format(body=body), str(parent), str(grace)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and int(process.stdout.readline()) == process.pid
    return process


@pytest.mark.parametrize(("body", "code"), [(BUSY, 9), ("time.sleep(600)", 9), (TOLD, 3)])
def test_the_death_of_the_other_process_ends_this_one(parent: subprocess.Popen[bytes], body: str, code: int) -> None:
    process = guarded(parent.pid, body, 60.0 if body == TOLD else 0.1)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert process.wait(timeout=60) == code
    assert process.stdout is not None and process.stdout.read() == ("told\n" if body == TOLD else "")
    process.stdout.close()


def test_a_process_that_is_gone_already(parent: subprocess.Popen[bytes]) -> None:
    parent.kill()
    parent.wait()
    process = guarded(parent.pid, "time.sleep(600)", 0.05)
    assert process.wait(timeout=60) == 9
    assert process.stdout is not None
    process.stdout.close()


def test_while_the_other_lives_nothing_happens_and_it_can_be_stopped(parent: subprocess.Popen[bytes]) -> None:
    guard = _native.Guard(parent.pid, _native.start_of(parent.pid), grace=0.0, code=9)
    assert not guard.is_dead and not guard.wait(timeout=0.05)
    guard.stop()
    parent.kill()
    parent.wait()
    assert not guard.wait(timeout=0.05)


def test_it_can_only_tell(parent: subprocess.Popen[bytes]) -> None:
    guard = _native.Guard(parent.pid, grace=None)
    parent.kill()
    assert guard.wait(timeout=60) and guard.is_dead
    parent.wait()


def test_a_number_that_another_process_has_by_now() -> None:
    own = os.getpid()
    assert _native.is_alive(own, _native.start_of(own)) and _native.is_alive(own, -1)
    assert not _native.is_alive(own, _native.start_of(own) - 1)
    assert _native.start_of(2**22 + 1) == 0 and not _native.is_alive(2**22 + 1, -1)


def test_a_zombie_is_dead() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    started = _native.start_of(child)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not _native.is_alive(child, started)
    os.waitpid(child, 0)


def test_a_forked_child_of_a_guarded_process_ends_normally(parent: subprocess.Popen[bytes]) -> None:
    guard = _native.Guard(parent.pid, grace=None)
    child = os.fork()
    if child == 0:
        del guard
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    guard.stop()
    parent.kill()
    parent.wait()

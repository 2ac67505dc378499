"""Helpers for other processes and bounded waits: forked children, Ctrl-C, and calls that must return in time."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["LONG", "SLOWER", "descriptors", "forked", "interrupted", "pressing_ctrl_c", "returns", "settled", "stop", "tasks", "until"]

_T = TypeVar("_T")

SLOWER = float(os.environ.get("ECHO_TEST_SLOWER", "1"))  # factor by which everything may take longer, for an emulated machine
LONG = 60.0  # seconds: each wait takes less than a second on an idle machine, but up to this with dozens of busy processes


def until(ready: Callable[[], _T], what: str, within: float = LONG) -> _T:
    """Wait until `ready()` is true, and return its value; fail with `what` if that does not happen in time."""
    within *= SLOWER
    end = time.monotonic() + within
    while not (answer := ready()):
        assert time.monotonic() < end, f"not within {within:g} s: {what}"
        time.sleep(0.005)
    return answer


def returns(call: Callable[[], _T], within: float = LONG) -> _T | BaseException:
    """Return what `call()` returns or raises. If it does neither in time, fail and show its stack."""
    within *= SLOWER
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(within)
    if thread.is_alive():
        frame = sys._current_frames().get(thread.ident or 0)
        where = "".join(traceback.format_stack(frame)[-4:]) if frame else ""
        raise AssertionError(f"the call has not returned after {within:g} s:\n{where}")
    return outcome[0]


def forked(check: Callable[[], object], within: float = LONG) -> None:
    """Run `check` in a forked child; fail with its traceback if it raises, or if it hangs."""
    within *= SLOWER
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test forks with threads on purpose
        child = os.fork()
    if child == 0:
        text = ""
        try:
            check()
        except BaseException:
            text = traceback.format_exc()
        finally:
            os.write(write, text.encode()[-60_000:] + b"\0")
            os._exit(0)
    os.close(write)
    data, end = b"", time.monotonic() + within
    with open(read, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
            if not (part := pipe.read(65536)):
                break
            data += part
    if not data:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert data, f"the forked child hangs, or died without a word within {within:g} s"
    assert data == b"\0", data.decode(errors="replace")


def interrupted(setup: str, call: str, cwd: Path, within: float = LONG) -> None:
    """Run `setup`, then `call`, in a new Python process, and send Ctrl-C while it waits. Fail unless
    the process closes everything and ends by KeyboardInterrupt."""
    within *= SLOWER
    setup = textwrap.dedent(setup)
    code = f"""import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" makes processes ignore it
{setup}
try:
    print("ready", flush=True)
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
else:
    print("returned", flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert child.stdout is not None
        logged = ""
        while (line := child.stdout.readline()) not in ("ready\n", ""):
            logged += line  # a library's warning about this machine
        assert line, logged
        _wait_until_it_waits(child.pid)
        child.send_signal(signal.SIGINT)
        try:
            said, _ = child.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGABRT)  # faulthandler prints its stack
            said, _ = child.communicate(timeout=within)
            raise AssertionError(f"Ctrl-C did not end {call} within {within:g} s\n{said}") from None
        assert (said, child.returncode) == ("interrupted\n", 0), f"{child.returncode}: {logged}{said}"
    finally:
        child.kill()
        child.communicate()


def _wait_until_it_waits(pid: int) -> None:
    """Return once the main thread of a process sleeps, looked at ten times in 0.2 s, or has ended; 10 s later in any case.

    On a busy machine the thread may still import what the call needs. If Ctrl-C interrupts the code that a dataclass makes of text, CPython
    ends the process with status -2 even if the program catches KeyboardInterrupt.
    """
    ends, asleep = time.monotonic() + 10 * SLOWER, 0
    while asleep < 10 and time.monotonic() < ends:
        time.sleep(0.02)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            return  # the call has returned or failed, and what the process said tells which
        asleep = asleep + 1 if state == "S" else 0


def stop(pid: int | None) -> None:
    """SIGSTOP, and wait until no thread of the process runs any more: all of them go on until one of them has taken the signal."""
    assert pid is not None, "the process has not been started"
    os.kill(pid, signal.SIGSTOP)
    until(lambda: all(state in "TtZX" for state in _states(pid)), f"process {pid} has stopped")


def _states(pid: int) -> Iterator[str]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has ended meanwhile
            yield (thread / "stat").read_text().rpartition(")")[2].split()[0]


def pressing_ctrl_c(call: Callable[[], object], ready: Callable[[], object] = lambda: time.sleep(0.2)) -> bool:
    """Run `call` on this thread, which must be the main one, and send Ctrl-C to this process once `ready()` has returned. Returns whether
    it interrupted the call; other errors of the call are raised."""

    def press() -> None:
        ready()
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=press, daemon=True)
    try:
        thread.start()
        call()
        thread.join()
        time.sleep(0.1)  # the signal is handled here at the latest
        return False
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGINT, before)


def descriptors() -> dict[str, str]:
    """This process's open file descriptors and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass  # the descriptor that lists them
    return found


def tasks() -> dict[str, str]:
    """This process's threads, native ones too, by id, with their names."""
    found = {}
    for name in os.listdir("/proc/self/task"):
        try:
            found[name] = Path(f"/proc/self/task/{name}/comm").read_text().strip()
        except OSError:
            pass  # the thread has ended meanwhile
    return found


def settled(look: Callable[[], dict[str, str]], before: dict[str, str], what: str) -> None:
    """Fail if `look` still lists more than `before` after it has had time to end."""
    end = time.monotonic() + LONG / 2 * SLOWER  # a pool such as grpcio's ends a thread that has been idle for 20 s
    while len(look()) > len(before):
        if time.monotonic() > end:
            left = {key: value for key, value in look().items() if before.get(key) != value}
            raise AssertionError(f"{what} left behind: {left}")
        time.sleep(0.02)

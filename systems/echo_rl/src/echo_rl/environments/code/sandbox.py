"""Calls functions of unknown origin in a process that may do little, and for a short time.

The process has no environment variables, limits of memory, time, files and processes, and its own empty folder. Where the kernel allows unprivileged namespaces
it also has no network, sees no process of yours and no file at all, and whatever it does, the kernel ends it with its caller. Without namespaces, hostile code
can refuse the signal that ends it with a caller that is killed; then it lives on. Shared memory of System V counts in no limit of a process: code that asks for
it gets more than the limit of memory, up to the kernel's ``kernel.shmall``. It ends with the namespace; without one it stays until somebody removes it by
``ipcrm``. This keeps honest mistakes and curious models away from your files. It is not a boundary
against somebody who has a fault of the kernel at hand: run hostile code in a virtual machine.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from echo_core import EchoError

__all__ = ["Answer", "SandboxFailure", "call", "namespaces"]

_log = logging.getLogger("echo.rl")
PROGRAM = Path(__file__).with_name("confined.py")
MOST_OUTPUT = 1 << 20
MEMORY = 512 << 20
STARTING = 60.0


class SandboxFailure(EchoError):
    """The process that calls functions could not be started or did not begin. The message says what it reported."""


class Answer(NamedTuple):
    """What a call gave: the text of its value, or what went wrong."""

    value: str | None
    error: str | None


@functools.cache
def namespaces() -> bool:
    """Whether this kernel lets the process have namespaces of its own. If not, one line in the log says why."""
    first = _run({"code": "", "function": "", "calls": [], "namespaces": True, "seconds": 10, "memory": MEMORY}, "/", 10.0)[0]
    if not first.get("confined"):
        _log.warning("functions run without namespaces (%s): they have limits, but can see files and the network", first.get("reason"))
    return bool(first.get("confined"))


def call(code: str, function: str, calls: Sequence[str], *, seconds: float) -> list[Answer]:
    """Call a function.

    Args:
        code: the Python source that defines it.
        function: its name.
        calls: the arguments of each call, as between the parentheses. They are evaluated in the process.
        seconds: how long all of them may take together.

    Returns:
        an answer for each call, in order. Those after a crash or the end of the time have an error.

    Raises:
        SandboxFailure: the process did not begin.
    """
    confined = namespaces()
    job = {"code": code, "function": function, "calls": list(calls), "namespaces": confined, "seconds": int(seconds) + 1, "memory": MEMORY}
    with contextlib.nullcontext("/") if confined else tempfile.TemporaryDirectory(prefix="echo-code-", ignore_cleanup_errors=True) as folder:
        if not confined and os.geteuid() == 0:
            os.chmod(folder, 0o777)  # the process is the user nobody then
        lines = _run(job, folder, seconds)
    if not lines[0].get("confined", False) and confined:
        raise SandboxFailure(f"the process that calls functions has lost its namespaces: {lines[0].get('reason')}")
    answers = [Answer(line.get("value"), line.get("error")) for line in lines[1 : 1 + len(calls)]]
    return answers + [Answer(None, "it did not end in time, or ended its process")] * (len(calls) - len(answers))


def _run(job: dict[str, Any], folder: str, seconds: float) -> list[dict[str, Any]]:
    """The lines that the process wrote until its time was over. The time begins when it has confined itself."""
    with tempfile.TemporaryFile() as given:
        given.write(json.dumps(job).encode())
        given.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(PROGRAM)],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd=folder,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        text = _read(process.stdout, seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    lines = [read for line in text.split(b"\n")[:-1] if (read := _line(line)) is not None]
    if not lines:
        raise SandboxFailure(f"the process that calls functions ended with {process.returncode} before it began")
    return lines


def _line(line: bytes) -> dict[str, Any] | None:
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return {key: value for key, value in read.items() if isinstance(value, str | bool)} if isinstance(read, dict) else None


def _read(out: IO[bytes], seconds: float) -> bytes:
    text, deadline, begun = b"", time.monotonic() + STARTING, False
    with selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_READ)
        while len(text) < MOST_OUTPUT and (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            part = os.read(out.fileno(), 1 << 16)
            if not part:
                break
            text += part
            if not begun and b"\n" in text:
                begun, deadline = True, time.monotonic() + seconds
    return text

"""Starts the worker processes, watches them, respawns dead ones, and ends all of them together."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Link
from multiprocessing.process import BaseProcess
from typing import Any

from . import worker

_HEALTHY = 5.0  # seconds after which a worker's death no longer counts as following the previous one
_TRIES = 4  # deaths in a row, each sooner than _HEALTHY, after which the job gives up
_GRACE = 5.0  # seconds in which workers can end by themselves


class FleetError(RuntimeError):
    """Workers keep dying; the message has the last error of one of them."""


@dataclass
class Member:
    """One worker, across its respawns."""

    index: int
    process: BaseProcess | None = None
    link: Link | None = None
    started: float = 0.0  # time.monotonic()
    respawns: int = 0
    quick_deaths: int = 0
    died: float = 0.0  # when it last died; 0: never
    cause: str = ""  # the cause of the last death
    last_words: str = ""  # the last error that it reported before its death
    restart_at: float = field(default=0.0, repr=False)

    @property
    def name(self) -> str:
        return f"worker-{self.index}"

    @property
    def pid(self) -> int:
        return (self.process.pid or 0) if self.process is not None else 0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.is_alive()


class Fleet:
    """All workers of a job. It is a context manager that leaves no process behind."""

    def __init__(self, address: str, options: Any, main: Callable[..., None] = worker.main) -> None:
        """``options.workers`` is the number of workers. Each worker runs ``main`` with ``options``."""
        self.address, self.main = address, main
        self.options = options
        self.members = [Member(index) for index in range(options.workers)]
        # Each worker gets a fresh interpreter, because forking a process whose threads hold sockets is unsafe.
        self._context = multiprocessing.get_context("spawn")

    def start(self) -> Fleet:
        """Start every worker, without waiting until they connect."""
        for member in self.members:
            self._spawn(member)
        return self

    def check(self) -> list[str]:
        """Detect dead workers and respawn them; returns one line of text for each event.

        Raises:
            FleetError: a worker died several times in a row, each time soon after its start.
        """
        happened: list[str] = []
        now = time.monotonic()
        for member in self.members:
            happened += [f"{member.name}: {remark}" for remark in _hear(member)]
            if member.process is not None and not member.process.is_alive():
                happened.append(self._bury(member, now))
            if member.process is None and now >= member.restart_at:
                member.respawns += 1
                self._spawn(member)
                happened.append(f"{member.name} respawned as pid {member.pid}")
        return happened

    def close(self) -> None:
        """End every worker, and wait for them. Idempotent."""
        for member in self.members:
            if member.link is not None:
                member.link.close()
                member.link = None
        deadline = time.monotonic() + _GRACE
        for member in self.members:
            if member.process is None:
                continue
            member.process.join(max(0.0, deadline - time.monotonic()))
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.process.close()
            member.process = None

    def _spawn(self, member: Member) -> None:
        ours, theirs = self._context.Pipe()
        member.process = self._context.Process(
            target=self.main,
            args=(theirs, self.address, member.index, member.respawns, self.options),
            name=member.name,
            daemon=True,  # a last resort: the worker then ends with this process
        )
        # The signal is blocked while the child starts, and the child inherits that. A Ctrl-C in this moment
        # reaches us right after, and never reaches a half-started child, which would print a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            member.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        member.link = ours
        member.started = time.monotonic()

    def _bury(self, member: Member, now: float) -> str:
        assert member.process is not None and member.link is not None
        code = member.process.exitcode or 0
        member.cause = member.last_words or (
            f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        )
        member.link.close()
        member.process.close()
        member.process = member.link = None
        member.died = now
        member.last_words = ""
        quick = now - member.started < _HEALTHY
        member.quick_deaths = member.quick_deaths + 1 if quick else 1
        if member.quick_deaths >= _TRIES:
            raise FleetError(f"{member.name} died {_TRIES} times in a row, last: {member.cause}")
        member.restart_at = now + (0.2 * 2**member.quick_deaths)
        return f"{member.name} died: {member.cause}"

    def __enter__(self) -> Fleet:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _hear(member: Member) -> list[str]:
    """The new remarks of a worker; its last error is stored in `last_words`."""
    remarks: list[str] = []
    try:
        while member.link is not None and member.link.poll():
            text = member.link.recv_bytes().decode(errors="replace")
            if text.startswith(worker.LAST_WORDS):
                member.last_words = text[1:]
            else:
                remarks.append(text[1:])
    except (EOFError, OSError):
        pass  # the worker is dead; the exit status of its process tells more
    return remarks

"""The process of one collector: its errors reach the learner, and it ends when the learner has died."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from . import _native
from .collector_error import ErrorReader, collector_error_guard, create_error_pipe, format_collector_death

__all__ = ["CollectorProcess"]

_SPAWN_CTX = multiprocessing.get_context("spawn")

STOPPING_SECONDS = 0.05  # between two looks at processes that were told to stop
GRACE_SECONDS = 2.0  # for a collector to end by itself after its learner died
KILLED_SECONDS = 2.0  # for the kernel to end a process that was killed
ORPHANED = 3  # the exit code of a collector whose learner died
EXPECTED = (0, -15)  # exit codes of collectors that were told to end


class CollectorProcess:
    """A spawned process, in which `target(**kwargs)` runs.

    Args:
        target: a function of a module.
        kwargs: its arguments. "stop_event" is set, and "metrics_queue" gets {"error": traceback}, when it fails, if they are there. "_error_label", which is
            not handed over, is what the collector is called.
        alone: a failure of this one does not tell the others: the stop event and the queue are left as they are.

    Attributes:
        process: a `multiprocessing.Process`.
        errors: the learner's end of its error pipe; it has the traceback after a failure.
    """

    def __init__(self, target: Callable[..., Any], kwargs: dict[str, Any], *, alone: bool = False) -> None:
        self.target, self.kwargs, self.alone = target, dict(kwargs), alone
        self.errors: ErrorReader
        self.told = False
        self.start()

    def start(self) -> None:
        """Start the process, or another one in place of one that has ended."""
        kwargs = dict(self.kwargs)
        label = kwargs.pop("_error_label", "collector")
        self.errors, writer = create_error_pipe()
        own = os.getpid()
        work = _Work((kwargs.get("metrics_queue"), kwargs.get("stop_event")), (self.target, kwargs))
        arguments = (work, writer, self.alone, label, own, _native.start_of(own))
        self.process = _SPAWN_CTX.Process(target=_run, args=arguments, daemon=True)
        try:
            self.process.start()
        except BaseException:
            self.errors.close()
            raise
        finally:
            writer.close()
        self.started = time.monotonic()
        self.told = False

    def death(self) -> str:
        """What happened to it, in words."""
        return death_of(self.process, self.errors)


class _Work:
    """The task of a process, and where it reports errors. The latter is unpickled first, so that an error in a module that the work imports is told.

    Both are pickled by one pickler, because an object that is in both has descriptors, which can be handed over only once.
    """

    def __init__(self, told: Any, work: Any) -> None:
        self.parts = (told, work)

    def __reduce__(self) -> tuple[Any, ...]:
        file = io.BytesIO()
        pickler = reduction.ForkingPickler(file, pickle.HIGHEST_PROTOCOL)
        for part in self.parts:
            pickler.dump(part)
        return _unpickler, (file.getvalue(),)


def _unpickler(data: bytes) -> pickle.Unpickler:
    return pickle.Unpickler(io.BytesIO(data))


def _run(work: pickle.Unpickler, writer: Any, alone: bool, label: str, parent: int, started: int) -> None:
    metrics, stop = work.load()
    guard = _native.Guard(parent, started, grace=GRACE_SECONDS, code=ORPHANED)
    threading.Thread(target=_stop_when_orphaned, args=(guard, stop), daemon=True).start()
    with collector_error_guard(writer, None if alone else metrics, None if alone else stop, label):
        target, kwargs = work.load()
        target(**kwargs)


def _stop_when_orphaned(guard: _native.Guard, stop: Any) -> None:
    while not guard.wait(60):
        pass
    if stop is not None:
        stop.set()  # the chance to end by itself; the guard ends the process in any case


def death_of(process: Any, errors: ErrorReader | None) -> str:
    """Describes how a process ended: its traceback, or the meaning of its exit code."""
    text = None
    if errors is not None and not errors.closed and errors.poll(0):
        text = errors.recv().exc_msg
    return format_collector_death(getattr(process, "exitcode", None), text)


def end_all(processes: list[Any], stop_timeout: float, term_timeout: float, meanwhile: Callable[[], None]) -> None:
    """Wait for processes that were told to stop; send SIGTERM to those that still run after `stop_timeout` seconds, and SIGKILL after `term_timeout` more.

    `meanwhile()` is called now and then while they are given time to stop.
    """
    until = time.monotonic() + stop_timeout
    while any(process.is_alive() for process in processes) and time.monotonic() < until:
        meanwhile()
        _join(processes, min(STOPPING_SECONDS, max(0.0, until - time.monotonic())))
    for send, seconds in (("terminate", term_timeout), ("kill", KILLED_SECONDS)):
        left = [process for process in processes if process.is_alive()]
        for process in left:
            getattr(process, send)()
        _join(left, seconds)


def _join(processes: list[Any], seconds: float) -> None:
    until = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))

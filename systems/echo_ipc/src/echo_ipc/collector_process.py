"""The process of one collector: its errors reach the learner, and it ends when the learner has died."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import reduction
from typing import Any

from echo_core.base.errors import ClosedError, ConfigError, ConnectionClosedError

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
    """A spawned process, in which `target(**kwargs)` runs. It has a process group of its own, and what it has started ends with it.

    Args:
        target: a function of a module.
        kwargs: its arguments. "stop_event" is set, and "metrics_queue" gets {"error": traceback}, when it fails, if they are there. "_error_label", which is
            not handed over, is what the collector is called.
        alone: a failure of this one does not tell the others: the stop event and the queue are left as they are.

    Raises ConfigError that names what cannot be handed to another process.

    Attributes:
        process: a `multiprocessing.Process` that was started.
        errors: the learner's end of its error pipe; it has the traceback after a failure.
    """

    def __init__(self, target: Callable[..., Any], kwargs: dict[str, Any], *, alone: bool = False) -> None:
        self.target, self.kwargs, self.alone = target, dict(kwargs), alone
        self.process: Any
        self.errors: ErrorReader
        self.start()

    def start(self) -> None:
        """Start the process, or another one in place of one that has ended. If this fails, `process` and `errors` are still those of the one before."""
        kwargs = dict(self.kwargs)
        label = kwargs.pop("_error_label", "collector")
        _check_main(self.target)
        errors, writer = create_error_pipe()
        own = os.getpid()
        work = _Work((kwargs.get("metrics_queue"), kwargs.get("stop_event")), (self.target, kwargs))
        arguments = (work, writer, self.alone, label, own, _native.start_of(own))
        process = _SPAWN_CTX.Process(target=_run, args=arguments, daemon=True)
        try:
            process.start()
        except BaseException as error:
            errors.close()
            if process.pid is not None:  # Ctrl-C came after it was started, and nobody else would end it
                process.kill()
                process.join()
            if isinstance(error, pickle.PicklingError | AttributeError | TypeError):
                _explain(self.target, kwargs)
            raise
        finally:
            writer.close()
        self.process, self.errors = process, errors
        self.started = time.monotonic()
        self.told = False

    def death(self) -> str:
        """What happened to it, in words."""
        return death_of(self.process, self.errors)

    def failed(self) -> bool:
        """Whether it is dead, and not because it came to its end or was told to."""
        return bool(self.process.exitcode) or (not self.errors.closed and self.errors.poll(0))


def _check_main(target: Any) -> None:
    """Raise ConfigError for a function of a notebook or an interactive Python: a new process cannot import their `__main__`."""
    main = sys.modules["__main__"]
    if getattr(target, "__module__", None) == "__main__" and getattr(main, "__spec__", None) is None and not hasattr(main, "__file__"):
        raise ConfigError(f"the collector {_name_of(target)} is defined in a notebook or an interactive Python, which a new process cannot import; {_REMEDY}")


def _explain(target: Any, kwargs: dict[str, Any]) -> None:
    """Raise ConfigError that names what cannot be pickled, if that can be found out."""
    for what, value in [(f"the collector {_name_of(target)}", target), *((f"the argument {name!r} of the collector", value) for name, value in kwargs.items())]:
        try:
            reduction.ForkingPickler.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(f"{what} cannot be handed to a new process ({error}); {_REMEDY}") from None
        except Exception:
            continue  # locks and queues refuse to be pickled now, but can be handed to a process that is being started


def _name_of(target: Any) -> str:
    return str(getattr(target, "__qualname__", repr(target)))


_REMEDY = "collectors are spawned, so define functions and classes for them at the top level of a module (a .py file) and import them from there"


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
    with suppress(OSError):
        os.setpgid(0, 0)
    metrics, stop = work.load()
    guard = _native.Guard(parent, started, grace=GRACE_SECONDS, code=ORPHANED)
    threading.Thread(target=_stop_when_orphaned, args=(guard, stop), daemon=True).start()
    with collector_error_guard(writer, None if alone else metrics, None if alone else stop, label):
        target, kwargs = work.load()
        try:
            target(**kwargs)
        except (ClosedError, ConnectionClosedError):
            if stop is None or not stop.is_set():
                raise
            # It waited for a learner that is closing.


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


def end_all(processes: list[Any], stop_timeout: float, term_timeout: float, meanwhile: Callable[[float], None]) -> None:
    """Wait for processes that were told to stop; send SIGTERM to those that still run after `stop_timeout` seconds, and SIGKILL after `term_timeout` more.

    `meanwhile(seconds)` is called now and then while they are given time to stop, with the time that has passed.
    In the end, the processes that they have started are killed.
    """
    processes = [process for process in processes if process.pid is not None]  # one that could not be started refuses join()
    for process in processes:  # one that is stopped (SIGSTOP) would notice nothing
        if process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
    begun = time.monotonic()
    until = begun + stop_timeout
    while any(process.is_alive() for process in processes) and time.monotonic() < until:
        meanwhile(time.monotonic() - begun)
        _join(processes, min(STOPPING_SECONDS, max(0.0, until - time.monotonic())))
    for send, seconds in (("terminate", term_timeout), ("kill", KILLED_SECONDS)):
        left = [process for process in processes if process.is_alive()]
        for process in left:
            getattr(process, send)()
        _join(left, seconds)
    for process in processes:
        end_group(process)


def end_group(process: Any) -> None:
    """Kill what a dead collector has started and left behind."""
    # While anybody is in the group, the system gives its number to no new process. So the group is still the collector's if no process has its number.
    if process.pid is not None and not _native.start_of(process.pid):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _join(processes: list[Any], seconds: float) -> None:
    until = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))

"""What went wrong in a collector, for its learner: the whole traceback, of any size, even if the process is killed right afterwards.

The text goes into a memfd that the parent holds. Nobody has to read it for the collector to end, as with a pipe, whose 64 KiB a long traceback
would fill. Only text travels: the parent never unpickles anything that a collector made.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

from echo_core.base.errors import ClosedError, EchoError
from echo_core.base.memory import memfd

__all__ = ["CollectorDiedError", "ErrorReader", "ErrorWriter", "ExceptionWrapper", "collector_error_guard", "create_error_pipe", "format_collector_death"]

WHOLE = b"echo-ipc error 1\n"  # written in front when the rest is there
POLL_SECONDS = 0.01


class CollectorDiedError(EchoError, RuntimeError):
    """A collector has ended although the learner goes on. The message has its traceback, or what its exit code tells."""


class ExceptionWrapper:
    """The exception that is being handled, as text.

    Attributes:
        exc_type: the name of its class. In the process that made it, upstream's code expects the class, which `exc_class` is; None elsewhere.
        exc_msg: the traceback.
        where: where it happened, such as "in collector".
    """

    def __init__(self, where: str = "in collector") -> None:
        kind, error, trace = sys.exc_info()
        self.exc_class = kind
        self.exc_type = "None" if kind is None else kind.__name__
        self.exc_msg = "".join(traceback.format_exception(kind, error, trace)) if kind is not None else ""
        self.where = where

    def __getstate__(self) -> dict[str, Any]:
        return {"exc_class": None, "exc_type": self.exc_type, "exc_msg": self.exc_msg, "where": self.where}

    @classmethod
    def of(cls, exc_type: str, exc_msg: str, where: str) -> ExceptionWrapper:
        found = cls.__new__(cls)
        found.exc_class, found.exc_type, found.exc_msg, found.where = None, exc_type, exc_msg, where
        return found

    def __str__(self) -> str:
        return f"{self.exc_type} {self.where}\n{self.exc_msg}"


class _End:
    """One end of what looks like a pipe and is a memfd."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            raise RuntimeError("an end of an error pipe can only be handed to a process that is being started, as an argument of Process")
        return _inherited, (type(self), reduction.DupFd(self._open()))

    def _open(self) -> int:
        if self._fd < 0:
            raise ClosedError("this end of the error pipe was closed")
        return self._fd


def _inherited(kind: type[_End], handed: Any) -> _End:
    fd = handed.detach()
    os.set_inheritable(fd, False)
    return kind(fd)


class ErrorWriter(_End):
    """The collector's end."""

    def send(self, error: ExceptionWrapper) -> None:
        """Write an error; a later one replaces it. This never blocks."""
        fd = self._open()
        fields = [text.encode("utf-8", "backslashreplace") for text in (error.exc_type, error.where, error.exc_msg)]
        body = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
        os.pwrite(fd, bytes(len(WHOLE)), 0)
        os.ftruncate(fd, len(WHOLE) + len(body))
        done = 0
        while done < len(body):
            done += os.pwrite(fd, memoryview(body)[done:], len(WHOLE) + done)
        os.pwrite(fd, WHOLE, 0)


class ErrorReader(_End):
    """The parent's end."""

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether there is an error; wait up to `timeout` seconds (None: for ever) for one."""
        end = None if timeout is None else time.monotonic() + timeout
        while os.pread(self._open(), len(WHOLE), 0) != WHOLE:
            if end is not None and time.monotonic() >= end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def recv(self) -> ExceptionWrapper:
        """The error, which stays there. Waits until there is one."""
        self.poll(None)
        fd = self._open()
        text, at = os.pread(fd, os.fstat(fd).st_size, 0), len(WHOLE)
        while len(text) < os.fstat(fd).st_size:
            text += os.pread(fd, 1 << 30, len(text))
        fields = []
        for _ in range(3):
            count = int.from_bytes(text[at : at + 8], "little")
            fields.append(text[at + 8 : at + 8 + count].decode("utf-8", "replace"))
            at += 8 + count
        return ExceptionWrapper.of(fields[0], fields[2], fields[1])


def create_error_pipe() -> tuple[ErrorReader, ErrorWriter]:
    """(the parent's end, the collector's end), for one collector. Hand the second one to its process as an argument."""
    reader = ErrorReader(memfd.create("echo-ipc-error"))
    return reader, ErrorWriter(os.dup(reader.fileno()))


@contextmanager
def collector_error_guard(
    error_conn: Any | None = None, metrics_queue: Any | None = None, stop_event: Any | None = None, label: str = "collector"
) -> Iterator[None]:
    """Around everything that a collector does: tell its learner of an exception, and let the exception end the process.

    Args:
        error_conn: gets the traceback; an `ErrorWriter`, or anything with `send`.
        metrics_queue: gets {"error": traceback}, without waiting for room. Afterwards the process does not wait for the queue's thread.
        stop_event: is set.
        label: what the collector is called on stderr.

    KeyboardInterrupt and an exit with another code than 0 count as well.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0)):
            raise
        wrapper = ExceptionWrapper(f"in {label}")
        with _broken_is_no_reason(label):
            if error_conn is not None:
                error_conn.send(wrapper)
        with _broken_is_no_reason(label):
            if stop_event is not None:
                stop_event.set()
        with _broken_is_no_reason(label):
            if metrics_queue is not None:
                metrics_queue.put_nowait({"error": wrapper.exc_msg})
                if hasattr(metrics_queue, "cancel_join_thread"):
                    metrics_queue.cancel_join_thread()  # without this, a process whose queue nobody empties does not end
        with suppress(Exception):
            print(f"---- {label} failed\n{wrapper.exc_msg}----", file=sys.stderr, flush=True)
        raise


@contextmanager
def _broken_is_no_reason(label: str) -> Iterator[None]:
    """One way to tell the learner may be broken; the others are still tried."""
    try:
        yield
    except Exception as failure:
        with suppress(Exception):
            print(f"{label}: {type(failure).__name__}: {failure}", file=sys.stderr, flush=True)


def format_collector_death(exitcode: int | None, traceback_text: str | None = None) -> str:
    """What happened to a collector, in words: its traceback if there is one, otherwise what its exit code tells."""
    if traceback_text:
        return f"Collector process crashed.\n\n{traceback_text.rstrip()}\n"
    if exitcode is None:
        return "Collector process died (exit code unknown)."
    if exitcode < 0 or exitcode >= 128:
        number = -exitcode if exitcode < 0 else exitcode - 128
        name = _signal_name(number)
        how = f"killed by signal {number} ({name})" if exitcode < 0 else f"exited with code {exitcode} (signal {number}, {name})"
        return "\n".join(filter(None, [f"Collector process {how}.", "  There is no Python traceback.", _HINTS.get(number)]))
    return f"Collector process exited with code {exitcode}."


_HINTS: dict[int, str] = {
    signal.SIGBUS: "  Often: a mapped file became shorter, or memory that other libraries share in /dev/shm ran out.",
    signal.SIGKILL: "  Often: the system was out of memory and chose this process (dmesg | grep -i oom).",
    signal.SIGSEGV: "  Often: a fault in native code of the simulator or of CUDA.",
}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"

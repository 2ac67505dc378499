"""Asks the server on a thread of its own whether a worker's task was cancelled, and tells the evaluation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from echo_core import Client, EchoError, JobEnded

from .cancelling import CURRENT

__all__ = ["Watch"]

_TIMEOUT = 20.0  # seconds after which the request is sent anew; the server answers within a few
_PAUSE = 0.25  # seconds after the server could not be asked


class Watch:
    """Asks `es/watch` until `end` is called.

    Args:
        client: the worker's connection. The requests of the worker itself go on meanwhile.
        cancel: called when the present task is cancelled, after its event was set. The task cannot end meanwhile, so it must not block.
    """

    def __init__(self, client: Client, cancel: Callable[[], None]) -> None:
        self._client, self._cancel = client, cancel
        self._lock = threading.Lock()
        self._cancelled = 0  # the number of the task that was cancelled last
        self._present: tuple[int, threading.Event] | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="echo-es-watch", daemon=True).start()

    @contextmanager
    def working(self, task: int) -> Iterator[threading.Event]:
        """While the block runs the worker does this task. The event is set if it is cancelled; `cancelled()` asks for it, too."""
        flag = threading.Event()
        with self._lock:
            self._present = task, flag
            if self._cancelled == task or self._ended.is_set():
                flag.set()
        before = CURRENT.set(flag)
        try:
            yield flag
        finally:
            CURRENT.reset(before)
            with self._lock:
                self._present = None

    def end(self) -> None:
        """Ask no more, and cancel the present task."""
        with self._lock:
            self._ended.set()
            self._cancel_present()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                answer, _ = self._client.request("es/watch", {"cancelled": self._cancelled}, timeout=_TIMEOUT)
            except JobEnded:
                self.end()
                return
            except EchoError:  # the server is lost: the worker's own requests say what is wrong
                self._ended.wait(_PAUSE)
                continue
            number = answer.get("cancelled")
            if number is None:
                self._ended.wait(_PAUSE)  # the worker has not joined yet
                continue
            with self._lock:
                if number == self._cancelled:  # none was cancelled meanwhile
                    continue
                self._cancelled = number
                if self._present is not None and self._present[0] == number:
                    self._cancel_present()

    def _cancel_present(self) -> None:
        """Cancel the present task; the lock is held, because without it the next task could be hit."""
        if self._present is not None:
            self._present[1].set()
            self._cancel()

"""Results fetched ahead of who reads them, by a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from .errors import ClosedError

__all__ = ["Prefetch"]

T = TypeVar("T")
LOOK = 0.08  # seconds between two looks for Ctrl-C
LET_GO = 1.0  # seconds that leaving waits for a fetch which does not look at its event


class Prefetch(Generic[T]):
    """Calls `fetch` until it raises, `ahead` results in advance; ClosedError ends the results, other errors are the reader's.

    `stop` is set when nobody wants more: a `fetch` that waits should look at it, and raise.
    """

    def __init__(self, fetch: Callable[[], T], ahead: int, stop: threading.Event) -> None:
        self._fetch, self._ahead, self._stop = fetch, ahead, stop
        self._ready: deque[T] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="echo-prefetch", daemon=True)

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._stop.is_set() or len(self._ready) < self._ahead)
                    if self._stop.is_set():
                        return
                result = self._fetch()
                with self._changed:
                    self._ready.append(result)
                    self._changed.notify_all()
                del result
        except BaseException as error:  # the reader's to see
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def __enter__(self) -> Iterator[T]:
        self._thread.start()
        return self._read()

    def _read(self) -> Iterator[T]:
        while True:
            with self._changed:
                while not self._ready and self._error is None:
                    self._changed.wait(LOOK)
                if not self._ready:
                    if isinstance(self._error, ClosedError):
                        return
                    assert self._error is not None
                    raise self._error
                result = self._ready.popleft()
                self._changed.notify_all()
            yield result

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
        self._thread.join(LET_GO)  # a request to a learner that is away goes on until its timeout; what it brings is dropped

"""A thread that calls functions for an event loop, and that the end of the process does not wait for."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple

__all__ = ["DaemonThread"]


class _Call(NamedTuple):
    future: Future[Any]
    context: contextvars.Context
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class DaemonThread:
    """Calls functions one after the other, all on one thread.

    Python waits for the threads of a ThreadPoolExecutor before it ends, so Ctrl-C would wait for an evaluation of minutes. It does not wait for this one.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns or raises. If this is cancelled, the function goes on, and nobody hears of its result."""
        future: Future[Any] = Future()
        self._calls.put(_Call(future, contextvars.copy_context(), function, arguments))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(future)

    def end(self) -> None:
        """Let the thread end once it has done its calls."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if not call.future.set_running_or_notify_cancel():
                continue
            try:
                result = call.context.run(call.function, *call.arguments)
            except StopIteration as error:  # a future of asyncio cannot have this exception, and whoever awaits it would wait for ever
                call.future.set_exception(RuntimeError(f"{call.function} raised StopIteration: {error}"))
            except BaseException as error:
                call.future.set_exception(error)
            else:
                call.future.set_result(result)
            del call

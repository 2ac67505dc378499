"""The listeners of a server that are open. One that raises does not keep the others from being told or closed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from ..base.errors import PluginError
from ..base.returned import returned, with_address
from ..wire.sink import Sink
from ..wire.transport import Listener, Transport

__all__ = ["Manner", "OpenListeners", "logged", "on_each", "open_listener"]

_log = logging.getLogger("echo")

Manner = Literal["close", "drain", "end_job"]  # the method of a Listener that ends it: each tells clients something else


def open_listener(transport: Transport, sink: Sink) -> Listener:
    """`transport.listen(sink)`. Raises what that raises; a PluginError names the transport, also the one for what is no usable Listener."""
    try:
        listener = returned(transport.listen(sink), Listener, "listen()")
        try:
            return with_address(listener)
        except PluginError:
            listener.close(0.0)
            raise
    except PluginError as error:
        raise type(error)(f"transport {transport.scheme!r}: {error}") from None


def on_each(listeners: Iterable[Listener], call: Callable[[Listener], object]) -> None:
    """Call `call` with each listener, also after one raised. Then raise the first error; the others are logged."""
    first: BaseException | None = None
    for listener in list(listeners):
        try:
            call(listener)
        except BaseException as error:
            if first is None:
                first = error
            else:
                _log.error("%s: %r", listener.address, error)
    if first is not None:
        raise first


@contextmanager
def logged(when: str) -> Iterator[None]:
    """Log an error of the block, because another one is about to be raised."""
    try:
        yield
    except Exception as error:
        _log.error("%s: %r", when, error)


class Closing:
    """One listener that is being closed.

    On the main thread, Ctrl-C could interrupt `Listener.close` anywhere and leave it half closed, so it runs on a thread of its own there.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.manner: Manner = "close"
        self._over = threading.Event()
        self._once = threading.Lock()  # the thread that gets it closes the listener
        self._error: BaseException | None = None

    def begin(self, until: float, manner: Manner) -> None:
        """Start to close it unless that was begun; `until` (time.monotonic) is when workers have been notified."""
        self.manner = manner
        if threading.current_thread() is not threading.main_thread():
            self._close(until)
            return
        try:
            threading.Thread(target=self._close, args=(until,), name="echo-close", daemon=True).start()
        except RuntimeError:  # there are no more threads, or the process ends
            self._close(until)

    def _close(self, until: float) -> None:
        if not self._once.acquire(blocking=False):
            return
        try:
            getattr(self.listener, self.manner)(max(0.0, until - time.monotonic()))
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    def finish(self) -> None:
        """Wait until it is closed; raise its error, once."""
        self._over.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error


class OpenListeners:
    """The listeners that are not closed yet. An empty one is false."""

    def __init__(self) -> None:
        self._open: list[Closing] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def __iter__(self) -> Iterator[Listener]:
        return iter([one.listener for one in self._open])

    def append(self, listener: Listener) -> None:
        self._open.append(Closing(listener))

    def close(self, timeout: float, manner: Manner = "close") -> None:
        """Close all side by side, and raise the first error. If Ctrl-C interrupts this, they go on closing, and the next call waits for them."""
        until = time.monotonic() + timeout
        first: BaseException | None = None
        closing = list(self._open)
        for one in closing:
            one.begin(until, manner)
        for one in closing:
            try:
                one.finish()
            except Exception as error:
                if first is None:
                    first = error
                else:
                    _log.error("%s: %r", one.listener.address, error)
            if one in self._open:  # another thread may close as well
                self._open.remove(one)
        if first is not None:
            raise first

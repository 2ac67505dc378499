"""Calls into code of others that may hang, such as an environment or a reward."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from echo_core import EchoError
from echo_rl.environments.base import EnvironmentFailure

__all__ = ["TimedCalls"]

_log = logging.getLogger("echo.rl")
_T = TypeVar("_T")


class TimedCalls:
    """Makes calls in a thread of its own, and gives up those that last too long. A thread cannot be ended, so that one that hangs is left alone.

    Args:
        timeout: the most seconds that a call may take.
        most: how many hanging threads are left alone; with one more, ``call`` raises EchoError, so that the process can end and be started anew.
    """

    def __init__(self, timeout: float, most: int = 16) -> None:
        self.timeout, self._most, self.hanging = timeout, most, 0
        self._calls: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]] | None] | None = None

    def call(self, what: str, function: Callable[..., _T], *arguments: Any) -> _T:
        """Return what the function returns.

        Args:
            what: the subject of the error, such as ``"environment shop: step('buy')"``.

        Raises:
            TimeoutFailure: it has not returned in time, and its environment is not to be called again. EchoError: too many calls hang.
            Whatever the function raises.
        """
        if self._calls is None:
            self._calls = SimpleQueue()
            threading.Thread(target=_serve, args=(self._calls,), name="echo-rl-environment", daemon=True).start()
        answer: SimpleQueue[Any] = SimpleQueue()
        self._calls.put((lambda: function(*arguments), answer))
        try:
            result, error = answer.get(timeout=self.timeout)
        except Empty:
            self._calls, self.hanging = None, self.hanging + 1
            _log.warning("%s has not returned for %.0f s; its rollout is given up", what, self.timeout)
            if self.hanging > self._most:
                raise EchoError(f"{what} has not returned for {self.timeout:.0f} s, and {self.hanging} such calls hang in this process") from None
            raise TimeoutFailure(f"{what} has not returned for {self.timeout:.0f} s") from None
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the thread, if it does not hang."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


class TimeoutFailure(EnvironmentFailure):
    """A call into an environment has not returned in time."""


def _serve(calls: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]] | None]) -> None:
    while (call := calls.get()) is not None:
        function, answer = call
        try:
            answer.put((function(), None))
        except BaseException as error:
            answer.put((None, error))

"""Calls into code of others that may hang, such as an environment or a reward."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from echo_core import EchoError
from echo_rl.environments.base import EnvironmentFailure

__all__ = ["TimedCalls", "TimeoutFailure"]

_log = logging.getLogger("echo.rl")
_END = 5.0  # the most seconds that close() waits for threads


class TimeoutFailure(EnvironmentFailure):
    """A call into an environment has not returned in time."""


class _Round:
    """Calls that a thread makes one after the other. ``given_up`` lets the thread make no more of them, if it ever comes back."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self.calls, self.results, self.given_up = calls, list[Any](), False
        self.done: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        for call in self.calls:
            try:
                result = call()
            except BaseException as error:
                result = error
            if self.given_up:
                return
            self.results.append(result)
        self.done.put(None)


class TimedCalls:
    """Makes calls in a thread of its own, and gives up those that last too long. A thread cannot be ended, so that one that hangs is left alone.

    Args:
        timeout: the most seconds that a call may take. A call that lasts more than twice as long is always given up.
        most: how many hanging threads are left alone; with one more, ``each`` raises EchoError, so that the process can end and be started anew.
    """

    def __init__(self, timeout: float, most: int = 16) -> None:
        self.timeout, self._most, self.hanging = timeout, most, 0
        self._rounds: SimpleQueue[_Round | None] | None = None
        self._threads = list[threading.Thread]()  # the last one is that of _rounds
        self._given_up = dict[threading.Thread, str]()  # with the subject of the call that each has not returned from

    def each(self, calls: Sequence[Callable[[], Any]], what: Sequence[str]) -> list[Any]:
        """Make the calls one after the other, and return for each its result, or the exception that it has raised.

        It is a TimeoutFailure for a call that has not returned in time, and whose environment is not to be used again. The calls after it are made as if
        it had returned.

        Args:
            what: the subject of each call's error, such as ``"environment shop: step('buy')"``.

        Raises EchoError if too many calls hang.
        """
        found: list[Any] = []
        while len(found) < len(calls):
            found += self._round(calls[len(found) :], what[len(found) :])
        return found

    def close(self, calls: Sequence[Callable[[], Any]] = (), what: Sequence[str] = ()) -> None:
        """Make the last calls, such as those that close environments. Then end the threads, and wait some seconds for them.

        A thread that still hangs then is left alone, and a warning names its call. No other thread outlives this: if a thread is in native code when the
        interpreter ends, such as in torch, which frees the tensors that the thread refers to, the whole process is aborted.

        Raises the first error of the calls, other than TimeoutFailure.
        """
        try:
            found = self.each(calls, what)
        finally:
            self._end_thread()
            until = time.monotonic() + _END
            for thread in self._threads:
                thread.join(max(0.0, until - time.monotonic()))
                if thread.is_alive() and thread in self._given_up:
                    _log.warning("%s still hangs, and its thread is left alone until the process ends", self._given_up[thread])
            self._threads.clear()
            self._given_up.clear()
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, TimeoutFailure):
                raise one

    def _round(self, calls: Sequence[Callable[[], Any]], what: Sequence[str]) -> list[Any]:
        """The results of all calls, or of those up to one that hangs."""
        if self._rounds is None:
            rounds = SimpleQueue[_Round | None]()
            thread = threading.Thread(target=_serve, args=(rounds,), name="echo-rl-environment", daemon=True)
            thread.start()
            self._rounds = rounds
            self._threads.append(thread)
        one = _Round(calls)
        self._rounds.put(one)
        made = -1
        try:
            while made < len(one.results):
                made = len(one.results)
                try:
                    one.done.get(timeout=self.timeout)
                    return one.results
                except Empty:
                    pass  # it hangs if not one call has returned meanwhile
        except BaseException:  # Ctrl-C
            self._give_up(one, what[min(len(one.results), len(what) - 1)])
            raise
        self._give_up(one, what[made])
        self.hanging += 1
        said = f"{what[made]} has not returned for {self.timeout:.0f} s"
        _log.warning("%s; the call is given up", said)
        if self.hanging > self._most:
            raise EchoError(f"{said}, and {self.hanging} such calls hang in this process")
        return [*one.results[:made], TimeoutFailure(said)]

    def _give_up(self, one: _Round, what: str) -> None:
        one.given_up, self._given_up[self._threads[-1]] = True, what
        self._end_thread()

    def _end_thread(self) -> None:
        """Let the thread end when its call has returned. The next round gets another one."""
        if self._rounds is not None:
            self._rounds.put(None)
            self._rounds = None


def _serve(rounds: SimpleQueue[_Round | None]) -> None:
    while (one := rounds.get()) is not None:
        one.run()
        del one  # a thread that waits would keep the environments and the policy of the last round in memory, and would be the one to free them

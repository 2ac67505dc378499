"""Tests: the workers of a search evaluate the parameters themselves, without noise."""

from __future__ import annotations

import threading
import time
from typing import Any

from echo_core.base.waiting import timed_out

from ..arguments import number, whole
from ..search.coordinator import Coordinator
from ..search.tasks import RefusedError, Rewards

__all__ = ["Tests"]

_LOOK = 0.1  # seconds between two looks whether the search is over


class Tests:
    """Runs one test after another. `run` may be called from many threads."""

    def __init__(self, coordinator: Coordinator, over: threading.Event) -> None:
        self._coordinator, self._over = coordinator, over
        self._turn = threading.Lock()
        self._done = threading.Event()
        self._rewards: Rewards | None = None

    def run(self, state: Any, episodes: int, timeout: float | None) -> Rewards:
        """Have workers evaluate `state` `episodes` times; see `ESServer.test`."""
        episodes = whole("episodes", episodes, 1)
        if timeout is not None:
            timeout = number("timeout", timeout, least=0, finite=False)
        ends = float("inf") if timeout is None else time.monotonic() + timeout
        while not self._turn.acquire(timeout=_LOOK):
            if time.monotonic() > ends:
                raise timed_out("test()", timeout, "another test to end")
        try:
            self._done.clear()
            self._coordinator.test(episodes, state)
            while not self._done.wait(_LOOK):
                if self._over.is_set() and not self._done.is_set():
                    raise RefusedError("the search ended before the test")
                if time.monotonic() > ends:
                    raise timed_out("test()", timeout, f"{episodes} episodes of {self._workers()}")
            assert self._rewards is not None
            return self._rewards
        finally:
            self._coordinator.end_test()
            self._turn.release()

    def done(self, rewards: Rewards) -> None:
        """The coordinator has all rewards of the test."""
        self._rewards = rewards
        self._done.set()

    def _workers(self) -> str:
        members = self._coordinator.members()
        able = sum(member.tests for member in members)
        return f"{len(members)} workers, of which {able} can test (a worker of its own class needs the method `on_test`)"

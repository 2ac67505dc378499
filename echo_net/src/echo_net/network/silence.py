"""Ends links whose other end has been silent for too long, even if a call of the system would wait for it for ever.

Both ends send at least one frame every third of `silence`, so a link on which nothing arrives for that long has lost its path: a
proxy stalled, a NAT forgot its mapping, or a machine lost its power. Neither the kernel nor a TLS library notices these.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet

__all__ = ["Listening", "unwatch", "watch"]

LONGEST_NAP, SHORTEST_NAP = 5.0, 0.01  # seconds between two looks


class Listening(Protocol):
    """What is watched."""

    beat: float

    def look(self) -> bool:
        """End the link if its other end has been silent for too long. Returns whether it should be watched further. Must not wait."""


class _Watch:
    """The links of one process, and the thread that looks at them while there are any."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._changed = threading.Condition()
        self._links: WeakSet[Listening] = WeakSet()
        self._running = False
        self._nap = LONGEST_NAP

    def add(self, link: Listening) -> None:
        with self._changed:
            self._links.add(link)
            if link.beat / 2 < self._nap:
                self._nap = max(SHORTEST_NAP, link.beat / 2)
                self._changed.notify()
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="echo-silence", daemon=True).start()

    def remove(self, link: Listening) -> None:
        with self._changed:
            self._links.discard(link)
            if not self._links:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._links:
                    self._changed.wait(self._nap)
                links = list(self._links)
                if not links:
                    self._running, self._nap = False, LONGEST_NAP
                    return
            for link in links:
                if not link.look():
                    with self._changed:
                        self._links.discard(link)
            with self._changed:
                self._nap = max(SHORTEST_NAP, min((link.beat / 2 for link in self._links), default=0.0))
                self._nap = min(self._nap, LONGEST_NAP)
            del links


_watch = _Watch()


def watch(link: Listening) -> None:
    """Look at `link` from time to time, until it ends or `unwatch` is called. It is not kept alive by this."""
    global _watch
    if _watch.pid != os.getpid():
        _watch = _Watch()  # a forked child has no thread of its parent
    _watch.add(link)


def unwatch(link: Listening) -> None:
    """Look at `link` no longer. Also ends the thread that looks if this was the last link."""
    if _watch.pid == os.getpid():
        _watch.remove(link)

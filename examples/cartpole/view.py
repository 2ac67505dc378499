"""The display of a run: a live terminal view with rich, or plain lines if that is not possible."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol

from .monitor import Monitor, Snapshot
from .options import Options

if TYPE_CHECKING:
    from types import TracebackType

_PLAIN_INTERVAL = 2.0  # seconds between two plain lines


class View(Protocol):
    """Shows snapshots. It is a context manager, so that the terminal is restored at the end."""

    def draw(self, snapshot: Snapshot, monitor: Monitor, last: bool = False) -> None:
        """Show ``snapshot``; ``last`` says that no further one follows."""

    def __enter__(self) -> View: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def open_view(options: Options, address: str) -> View:
    """The live view if it is wanted and possible; otherwise plain lines."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    if options.view and sys.stdout.isatty() and encoding == "utf8":
        try:
            from .live import LiveView
        except ImportError:
            print("no live view: rich is missing; run: pip install rich")
        else:
            return LiveView(options, address)
    return PlainView(options, address)


class PlainView:
    """Prints one line every few seconds, and one for each event."""

    def __init__(self, options: Options, address: str) -> None:
        self.options = options
        self._due = 0.0
        self._told = 0
        print(f"learner at {address}, {options.workers} workers", flush=True)

    def draw(self, snapshot: Snapshot, monitor: Monitor, last: bool = False) -> None:
        """Print new events, and a line if it is due."""
        for at, text in snapshot.events[self._told :]:
            print(f"{at:6.1f} s  {text}", flush=True)
        self._told = len(snapshot.events)
        now = time.monotonic()
        if now < self._due and not last:
            return
        self._due = now + _PLAIN_INTERVAL
        alive = sum(row.alive for row in snapshot.workers)
        print(
            f"{snapshot.elapsed:6.1f} s  return {snapshot.mean_return:5.1f}  "
            f"{snapshot.learned_per_s:6.0f} learned/s  {snapshot.mb_per_s:5.1f} MB/s  "
            f"{snapshot.batches_per_s:5.1f} batches/s  lag {snapshot.lag:4.1f}  "
            f"store {snapshot.stored}/{snapshot.capacity}  "
            f"workers {alive}/{len(snapshot.workers)}  "
            f"waits: learner {snapshot.learner_waits:4.0%}, workers {snapshot.workers_wait:4.0%}",
            flush=True,
        )

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def who_waits(snapshot: Snapshot) -> str:
    """One sentence: who waits for whom, and therefore who sets the pace."""
    learner, workers = snapshot.learner_waits, snapshot.workers_wait
    if not snapshot.version:
        return "waiting for the first batch"
    if learner < 0.1 and workers < 0.1:
        return "nobody waits long"
    if workers > learner:
        return "workers wait for the learner to learn"
    return "the learner waits for experience"

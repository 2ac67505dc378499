"""How commands that run a server are ended: by SIGTERM and Ctrl-C. SIGTERM means that the server may be started again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["LOOK_SECONDS", "End", "end_signals"]

LOOK_SECONDS = 0.25  # how often a command looks whether there is another reason to end


class End(threading.Event):
    """Is set by SIGTERM and by Ctrl-C.

    Attributes:
        interrupted: whether Ctrl-C came.
    """

    interrupted = False


@contextmanager
def end_signals() -> Iterator[End]:
    """An event that SIGTERM and Ctrl-C set while the block runs."""
    over = End()

    def end(number: int, frame: FrameType | None) -> None:
        over.interrupted |= number == signal.SIGINT
        over.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

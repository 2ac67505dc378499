"""How commands that run a server are ended: by SIGTERM and Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["LOOK_SECONDS", "end_signals"]

LOOK_SECONDS = 0.25  # how often a command looks whether there is another reason to end


@contextmanager
def end_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set while the block runs."""
    over = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        over.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

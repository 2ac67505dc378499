"""Tells a running evaluation whether its result is still needed."""

from __future__ import annotations

import threading
from contextvars import ContextVar

__all__ = ["CURRENT", "cancelled"]

# The flag of the evaluation that runs in this thread or task. Threads that an evaluation starts itself do not see it.
CURRENT: ContextVar[threading.Event | None] = ContextVar("echo_es_cancelled", default=None)


def cancelled() -> bool:
    """Whether nobody needs the result of the present evaluation any more: others were faster, or the search has ended.

    A long `evaluate` asks now and then, and returns None if so. The server does not count what it returns then.
    """
    flag = CURRENT.get()
    return flag is not None and flag.is_set()

"""Starts threads of a test, and checks that they end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["ended", "in_thread"]


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    """Start a thread that runs `work`; see `ended`."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(*threads: threading.Thread, within: float = 60.0) -> None:
    """Fail unless all of them end."""
    for thread in threads:
        thread.join(within)
        assert not thread.is_alive(), f"a thread still runs after {within:g} s"

"""Starts threads of a test, and checks that they end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .processes import LONG, SLOWER

__all__ = ["ended", "in_thread"]


def in_thread(work: Callable[..., Any], *arguments: Any) -> threading.Thread:
    """Start a thread that runs `work(*arguments)`; see `ended`."""
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def ended(*threads: threading.Thread, within: float = LONG * SLOWER) -> None:
    """Fail unless all of them end."""
    for thread in threads:
        thread.join(within)
        assert not thread.is_alive(), f"a thread still runs after {within:g} s"

"""Fixtures for all tests of echo-ipc: no settings of the user have an effect, and no test leaves a thread, a process, a descriptor or a mapping behind."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_testing.fixtures import config_home, no_settings_of_the_user, nothing_left_behind  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))  # processes that are spawned import `actors` from here

from held_memory import held


@pytest.fixture(autouse=True)
def no_memory_left() -> Iterator[None]:
    """A test leaves nothing in /dev/shm, and its objects give back what they have."""
    before = set(os.listdir("/dev/shm"))
    yield
    until = time.monotonic() + 60
    while held() and time.monotonic() < until:
        gc.collect()  # a traceback in a cycle may hold an object
        time.sleep(0.01)
    assert held() == []
    assert {name for name in os.listdir("/dev/shm") if "echo" in name} <= before

"""Fixtures for all tests of echo-ipc: no settings of the user have an effect, and no test leaves a thread, a process, a descriptor or a mapping behind."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_core.testing.fixtures import config_home, no_settings_of_the_user, nothing_left_behind  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))  # processes that are spawned import `actors` from here


def held(pid: int | str = "self") -> list[str]:
    """Descriptors of shared memory, and mappings of it, that a process has."""
    found = [line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().replace(" (deleted)", "").splitlines() if "memfd:echo-ipc" in line]
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if "memfd:echo-ipc" in link:
            found.append(link)
    return found


@pytest.fixture(autouse=True)
def no_memory_left() -> Iterator[None]:
    """A test leaves nothing in /dev/shm, and its objects give back what they have."""
    before = set(os.listdir("/dev/shm"))
    yield
    until = time.monotonic() + 5
    while held() and time.monotonic() < until:
        gc.collect()  # a traceback in a cycle may hold an object
        time.sleep(0.01)
    assert held() == []
    assert {name for name in os.listdir("/dev/shm") if "echo" in name} <= before

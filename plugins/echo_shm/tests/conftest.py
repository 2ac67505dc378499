"""Fixtures for all tests of shared memory: no settings of the user have an effect, and no test leaves anything behind."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_testing.fixtures import config_home, no_settings_of_the_user, nothing_left_behind  # noqa: F401


@pytest.fixture(autouse=True)
def no_file_left() -> Iterator[None]:
    """A test leaves no file in memory. Echo's memory has no names there, so every file with Echo's name is a mistake."""
    before = {name for name in os.listdir("/dev/shm") if "echo" in name}
    yield
    assert {name for name in os.listdir("/dev/shm") if "echo" in name} <= before


@pytest.fixture
def no_memory_left() -> Iterator[None]:
    """Servers and clients of the test have left no memfd open or mapped."""
    yield
    until = time.monotonic() + 60
    while memfds() and time.monotonic() < until:
        time.sleep(0.02)
        gc.collect()  # a traceback in a cycle may hold a closed server
    assert memfds() == []


def memfds() -> list[str]:
    """Descriptors of stores, and mappings of them, that this process still has."""
    found = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:echo-" in line]
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if "memfd:echo-" in link:
            found.append(link)
    return found

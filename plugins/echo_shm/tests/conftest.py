"""What every test of shared memory may rely on: no settings of the user, and nothing left behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_settings_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the environment nor the token file of whoever runs the tests reaches them."""
    for name in os.environ:
        if name.startswith("ECHO_") and name != "ECHO_SOAK_SECONDS":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """A test ends its threads, and leaves no file in memory."""
    threads = set(threading.enumerate())
    yield
    until = time.monotonic() + 5
    while set(threading.enumerate()) - threads and time.monotonic() < until:
        time.sleep(0.02)
    assert not set(threading.enumerate()) - threads
    assert not [name for name in os.listdir("/dev/shm") if "echo" in name]


@pytest.fixture
def no_memory_left() -> Iterator[None]:
    """Servers and clients of the test that are gone have left no memfd, open or mapped."""
    yield
    until = time.monotonic() + 5
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

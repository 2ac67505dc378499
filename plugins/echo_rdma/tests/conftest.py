"""Settings of the user do not affect these tests, and no test leaves anything behind. Without UCX they are skipped with a message."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_core.base.errors import ConfigError
from echo_rdma import library
from echo_testing.processes import SLOWER

OF_ECHO = {"ECHO_SOAK_SECONDS", "ECHO_TEST_SLOWER", "ECHO_RDMA_HOST", "ECHO_RDMA_LANES", library.LIBRARY}
KEPT = OF_ECHO | {"UCX_NET_DEVICES", "UCX_RNDV_THRESH", "UCX_RC_VERBS_TIMEOUT"}  # what `nox -s rdma_vm` sets


@pytest.fixture(autouse=True)
def no_settings_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("ECHO_", "UCX_")) and name not in KEPT:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """A test ends its threads, and leaves no file in memory."""
    threads = set(threading.enumerate())
    yield
    until = time.monotonic() + 60 * SLOWER
    while set(threading.enumerate()) - threads and time.monotonic() < until:
        time.sleep(0.02)
    assert not set(threading.enumerate()) - threads
    assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/echo" in line]


@pytest.fixture(scope="session")
def ucx() -> tuple[int, int, int]:
    """The version of UCX in use; without UCX the test is skipped."""
    try:
        return library.ucx()[1]
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def shared_memory(ucx: tuple[int, int, int]) -> None:
    """A UCX whose shared memory survives the loss of a peer; the transport does not use that of other versions."""
    if not library.shares_memory(ucx):
        pytest.skip(f"the shared memory of UCX {'.'.join(map(str, ucx))} is left out: see library.shares_memory")

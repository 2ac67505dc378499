"""Fixtures for the tests of a plugin: nothing of whoever runs them reaches a test, and a test leaves nothing behind.

    # tests/conftest.py
    from echo_core.testing.fixtures import config_home, no_settings_of_the_user, nothing_left_behind  # noqa: F401

Both work by being imported. Override `config_home` where tests may share a token and an authority.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

__all__ = ["config_home", "no_settings_of_the_user", "nothing_left_behind", "skip_what_is_missing"]

ENDING_SECONDS = 20.0  # for threads and processes to be gone after a test
KEPT = ("ECHO_SOAK_SECONDS",)  # how long tests press on, no setting of Echo's


@pytest.fixture
def config_home(tmp_path: Path) -> Path:
    """Where a test's tokens and authorities lie."""
    return tmp_path / "config"


@pytest.fixture(autouse=True)
def no_settings_of_the_user(config_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the environment nor the token file of whoever runs the tests reaches them."""
    for name in list(os.environ):
        if name.startswith("ECHO_") and name not in KEPT:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config_home))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """A test ends its threads and processes."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + ENDING_SECONDS
    while True:
        threads = [thread for thread in threading.enumerate() if thread not in before]
        children = multiprocessing.active_children()
        if not threads and not children:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    for child in children:
        child.kill()
    pytest.fail(f"left behind: {[*threads, *children]}")


def skip_what_is_missing(items: Iterable[pytest.Item], *always: str) -> None:
    """For `pytest_collection_modifyitems`: skip what is marked `needs(*distributions)` where one of those, or of `always`, is missing."""
    for item in items:
        for marker in item.iter_markers("needs"):
            missing = [name for name in (*always, *marker.args) if not _installed(name)]
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(missing)}"))


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True

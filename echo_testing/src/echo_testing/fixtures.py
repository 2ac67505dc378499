"""Fixtures for the tests of a plugin: settings of the user do not reach a test, and a test leaves nothing behind.

    # tests/conftest.py
    from echo_testing.fixtures import config_home, no_settings_of_the_user, nothing_left_behind  # noqa: F401

To use them, import them. Override `config_home` if tests may share a token and an authority.
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

ENDING_SECONDS = 20.0  # in which threads and processes must end after a test
KEPT = ("ECHO_SOAK_SECONDS",)  # how long soak tests run; it is not a setting of Echo


@pytest.fixture
def config_home(tmp_path: Path) -> Path:
    """The folder of a test's tokens and authorities."""
    return tmp_path / "config"


@pytest.fixture(autouse=True)
def no_settings_of_the_user(config_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the environment variables and the token file of the user who runs the tests."""
    for name in list(os.environ):
        if name.startswith("ECHO_") and name not in KEPT:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config_home))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail if a test does not end its threads and processes."""
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
    """For `pytest_collection_modifyitems`: skip tests marked `needs(*distributions)` if one of these, or of `always`, is missing."""
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

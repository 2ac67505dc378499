"""What every test may rely on: no settings of the person who runs them, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
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
    """A test ends its threads and processes."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while True:
        threads = [t for t in threading.enumerate() if t not in before]
        children = multiprocessing.active_children()
        if not threads and not children:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    for child in children:
        child.kill()
    pytest.fail(f"left behind: {[*threads, *children]}")


@pytest.fixture(scope="session")
def soak_seconds() -> float:
    """How long tests that press on for a while do so: ECHO_SOAK_SECONDS, else two seconds."""
    return float(os.environ.get("ECHO_SOAK_SECONDS", "2"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("needs"):
            missing = [name for name in marker.args if not _installed(name)]
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(missing)}"))


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a Python of its own: for what would take the tests down with it."""

    def run(code: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    return run

"""What every test may rely on: no settings of the person who runs them, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from echo_testing.fixtures import config_home, no_settings_of_the_user, nothing_left_behind, skip_what_is_missing  # noqa: F401


@pytest.fixture(scope="session")
def soak_seconds() -> float:
    """How long tests that press on for a while do so: ECHO_SOAK_SECONDS, else two seconds."""
    return float(os.environ.get("ECHO_SOAK_SECONDS", "2"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_what_is_missing(items)


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

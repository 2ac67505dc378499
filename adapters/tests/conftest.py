"""Fixtures of the adapters' tests: settings of the user do not reach them, and tests of libraries that are not installed are skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from echo_testing.fixtures import config_home, no_settings_of_the_user, skip_what_is_missing  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))  # one module of tests uses the environments of another


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_what_is_missing(items, "echo-adapters")

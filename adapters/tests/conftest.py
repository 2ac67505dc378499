"""Tests of the adapters: nothing of whoever runs them, and skipped where what they adapt to is not installed."""

from __future__ import annotations

import pytest

from echo_core.testing.fixtures import config_home, no_settings_of_the_user, skip_what_is_missing  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_what_is_missing(items, "echo-adapters")

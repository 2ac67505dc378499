"""What every test of echo-rl may rely on: no settings of the person who runs them, and nothing left behind."""

from __future__ import annotations

import pytest

from echo_testing.fixtures import config_home, no_settings_of_the_user, nothing_left_behind, skip_what_is_missing  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_what_is_missing(items)

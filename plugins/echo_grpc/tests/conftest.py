"""Settings of the user do not affect these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

import echo_grpc  # noqa: F401 - before any test imports grpcio: sets its log
from echo_testing.fixtures import no_settings_of_the_user  # noqa: F401


@pytest.fixture
def config_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One authority for all tests of a session, because it takes a moment to make one."""
    return tmp_path_factory.getbasetemp() / "config"

"""Nothing of the user reaches these tests."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_settings_of_the_user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("ECHO_"):
            monkeypatch.delenv(name)
    # One authority for all tests of a session: making one takes a moment.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))

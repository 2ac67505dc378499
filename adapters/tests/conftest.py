"""Tests of the adapters: nothing of whoever runs them, and skipped where what they adapt to is not installed."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_settings_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ECHO_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("needs"):
            for name in ("echo-adapters", *marker.args):
                try:
                    distribution(name)
                except PackageNotFoundError:
                    item.add_marker(pytest.mark.skip(reason=f"not installed: {name}"))

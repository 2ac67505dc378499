"""Every test here needs replay tables: tox's environments find them by this mark."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:  # of the whole session
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.needs("echo-replay"))

"""Fixtures for the tests with the real clients of Evochi, 0.1.3 and 0.1.4, which need Python 3.12.

REAL_EVOCHI_CLIENTS is a folder with one folder for each version, made with `pip install --no-deps --target FOLDER/VERSION evochi==VERSION`;
tox does that. They are not installed in the environment itself, because it can have only one of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VERSIONS = ["0.1.3", "0.1.4"]
collect_ignore_glob = [] if "REAL_EVOCHI_CLIENTS" in os.environ else ["test_*.py"]  # tools/suites.py notices if no environment has run them


@pytest.fixture(params=VERSIONS)
def client_folder(request: pytest.FixtureRequest) -> Path:
    """The folder in which a version of the package `evochi` is."""
    folder = Path(os.environ["REAL_EVOCHI_CLIENTS"]) / request.param
    assert (folder / "evochi").is_dir(), f"evochi {request.param} is not in {folder}"
    return folder

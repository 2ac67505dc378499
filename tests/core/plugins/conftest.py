"""The transport `way`, which is complete, for tests of how plugins are found and what is said about mistakes in them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `plugin_sources`

from plugin_sources import TRANSPORT, TRANSPORT_CLASS

from echo_core.plugins.discovery import TRANSPORTS

Install = Callable[..., None]


@pytest.fixture
def way(install: Install) -> None:
    """A transport `way` of echo-way 0.1, complete."""
    source = TRANSPORT.format(name="way", module="fake_way", api=1)
    names = {"way": "fake_way"}
    install("echo-way", "0.1", TRANSPORTS, names, fake_way=source, fake_way_impl=TRANSPORT_CLASS)

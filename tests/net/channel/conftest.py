"""Every test has a network of its own, and leaves no descriptor open."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `local_net`

from local_net import net

from echo_testing.processes import descriptors, settled


@pytest.fixture(autouse=True)
def fresh_net() -> Iterator[None]:
    before = descriptors()
    net.__init__()  # type: ignore[misc]
    yield
    net.channels.clear()
    settled(descriptors, before, "file descriptors")

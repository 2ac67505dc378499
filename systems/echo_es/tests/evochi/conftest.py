"""grpc.aio ends its polling thread when its last object is freed; what a failed call leaves is freed by the collector only."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_left_behind(nothing_left_behind: None) -> Iterator[None]:
    yield
    gc.collect()

"""What the tests of serving share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from echo_rl.engine import Engine, Model, ModelConfig
from echo_rl.serving import Endpoint

CONFIG = ModelConfig("gpt2", vocab=260, layers=2, heads=4, width=32, inner=64, context=512)


@pytest.fixture
def engine() -> Engine:
    """Return an engine whose tokens are bytes, and four more."""
    return Engine(Model.random(CONFIG, scale=0.3), slots=8, room=256, seed=3)


@pytest.fixture
def endpoint(engine: Engine) -> Iterator[Endpoint]:
    """Yield a running endpoint."""
    with Endpoint(engine, most=16) as running:
        yield running

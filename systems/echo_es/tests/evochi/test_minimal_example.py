"""The minimal example of Evochi's README on a channel of gRPC: only the import is changed, and the port."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from minimal_example import example

from echo_es import ESServer

WAIT = 60


def test_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with ESServer(12, evochi="127.0.0.1:0", max_epochs=3) as server:
        module = example(monkeypatch, '"localhost:8080")', f'"127.0.0.1:{server.evochi_port}")')
        asyncio.run(asyncio.wait_for(module.main(), WAIT))
        assert server.wait(WAIT)
        assert server.rewards is not None and server.rewards[0] == 3
        assert all(-42 <= reward <= 42 and reward == int(reward) for reward in server.rewards[1])
        assert server.state(module.State) == module.State(seed=42)

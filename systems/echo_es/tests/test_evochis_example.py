"""The minimal example of Evochi's README at an address of Echo: only the import is changed, and the channel."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "evochi"))

from minimal_example import example

from echo_es import ESServer

pytestmark = pytest.mark.needs("echo-tcp", "echo-grpc")  # it imports grpc.aio
WAIT = 60


def test_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with ESServer(12, "tcp://127.0.0.1:0", max_epochs=3) as server:
        module = example(monkeypatch, 'grpc.insecure_channel("localhost:8080")', f'"{server.address}"')
        asyncio.run(asyncio.wait_for(module.main(), WAIT))
        assert server.wait(WAIT)
        assert server.rewards is not None and server.rewards[0] == 3
        assert all(-42 <= reward <= 42 and reward == int(reward) for reward in server.rewards[1])
        assert server.state(module.State) == module.State(seed=42)

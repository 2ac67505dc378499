"""Strangers of every kind, over every network transport that is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from echo_core import Queue, Server
from echo_core.plugins import discovery
from echo_net.channel import Channel

sys.path.insert(0, str(Path(__file__).parent))  # for `strangers`

from strangers import EXAMPLE, SCHEMES, TOKEN, dial


@pytest.fixture(autouse=True)
def _authority(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own authority is made once for all tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))
    monkeypatch.setenv("ECHO_TOKEN", TOKEN)


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    names = [record.name for record in discovery.installed(discovery.TRANSPORTS) if not record.disabled]
    if request.param not in names:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.fixture
def serve(scheme: str) -> Iterator[Callable[..., Server]]:
    """Started learners: `serve(**options of the transport)`, with a queue in the place of a stream if `queue=True`."""
    servers: list[Server] = []

    def serve(*, queue: bool = False, **options: Any) -> Server:
        stored: dict[str, Any] = {"capacity": 64, "sampler": "fifo", "rate_limiter": Queue(64)} if queue else {"num_buffers": 8}
        server = Server(EXAMPLE, 4, {"type": scheme, "port": 0, **options}, **stored)
        servers.append(server)
        return server.start()

    yield serve
    for server in servers:
        server.close(timeout=2)


@pytest.fixture
def strangers() -> Iterator[Callable[[Server], Channel]]:
    """Connections that end with the test."""
    channels: list[Channel] = []

    def stranger(server: Server) -> Channel:
        channels.append(dial(server.address))
        return channels[-1]

    yield stranger
    for channel in channels:
        channel.shutdown()
        channel.close()

"""The rig of these tests: processes that can be killed, a proxy that breaks links, raw workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Processes started by these tests import the rig as well, by the same name.
sys.path.insert(0, str(Path(__file__).parent))

from rig.processes import Child, Children
from rig.proxy import Plan, Proxy

from echo_core import Server
from echo_testing.samples import example


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """`start(target, *arguments)`: a process that runs `target(link, *arguments)`."""
    with Children() as children:
        yield children.start


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """`serve(batch_size, filler, **options)`: a started server of `samples.example(filler)`."""
    servers: list[Server] = []

    def serve(batch_size: int = 16, filler: int = 48, **options: object) -> Server:
        transport = {"type": "tcp", "port": 0, **options.pop("transport", {})}  # type: ignore[dict-item]
        server = Server(example(filler), batch_size, transport, **options)  # type: ignore[arg-type]
        servers.append(server.start())
        return server

    yield serve
    for server in servers:
        server.close(1.0)


@pytest.fixture
def proxy() -> Iterator[Callable[..., Proxy]]:
    """`proxy(server.port, plan)`: see `rig.proxy.Proxy`."""
    proxies: list[Proxy] = []

    def between(port: int, plan: Callable[[int], Plan] | Plan | None = None) -> Proxy:
        proxies.append(Proxy(port, plan or Plan()))
        return proxies[-1]

    yield between
    for one in proxies:
        one.close()


@pytest.fixture(scope="session")
def press_on() -> float:
    """Seconds that load lasts: ECHO_SOAK_SECONDS, else five."""
    return float(os.environ.get("ECHO_SOAK_SECONDS", "5"))

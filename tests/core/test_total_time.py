"""The timeout of a client's call is the time of the whole call, however many tables the client has connections to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import echo_core
from echo_core import Client, EchoTimeoutError, Server
from echo_core.base import waiting

pytestmark = [pytest.mark.needs("echo-tcp", "echo-samplers")]

EXAMPLE = {"x": np.zeros(4, np.float32)}


class Clock:
    """The time of `echo_core.base.waiting`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


@pytest.fixture
def client() -> Iterator[Client]:
    tables = [echo_core.Table(name, EXAMPLE, capacity=10, sampler="uniform") for name in "abc"]
    others = dict.fromkeys("bc", EXAMPLE)
    with (
        Server(transport="tcp://127.0.0.1:0", tables=tables, batch_size=1) as server,
        Client(server.address, EXAMPLE, table="a", tables=others, timeout=20) as client,
    ):
        for table in "abc":
            client.send(EXAMPLE, table=table)
        client.wait()
        yield client


@pytest.mark.parametrize("given, expected", [(10, [10, 6, 2]), (5, [5, 1, 0]), (0, [0, 0, 0]), (None, [20, 16, 12])])
@pytest.mark.parametrize("call", ["flush", "wait", "close"])
def test_all_connections_of_a_client_share_the_time(
    call: str, given: float | None, expected: list[float], client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float | None] = []

    def timed(real: Any) -> Any:
        def function(timeout: float | None = None) -> Any:
            times.append(timeout)
            clock.now += 4  # it took so long
            return real(5)

        return function

    with monkeypatch.context() as patch:
        for connection in (outlet.raw for outlet in client._outlets.open()):
            patch.setattr(connection, call, timed(getattr(connection, call)))
        getattr(client, call)(given)
    assert times == expected


@pytest.mark.parametrize("wrong, error", [("5", TypeError), (-1, ValueError), (float("nan"), ValueError)])
def test_an_invalid_time_closes_nothing(wrong: Any, error: type[Exception], client: Client) -> None:
    for call in (client.close, client.wait, client.flush):
        with pytest.raises(error):
            call(wrong)
    client.send(EXAMPLE)
    client.wait()


def test_an_error_does_not_keep_the_others_from_their_share(client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[float | None] = []
    connections = [outlet.raw for outlet in client._outlets.open()]

    def failing(timeout: float | None = None) -> None:
        times.append(timeout)
        clock.now += 4
        raise EchoTimeoutError("full")

    with monkeypatch.context() as patch:
        for connection in connections:
            patch.setattr(connection, "close", failing)
        with pytest.raises(EchoTimeoutError, match="full"):
            client.close(10)
    assert times == [10, 6, 2]

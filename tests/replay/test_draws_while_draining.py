"""A server that is drained draws no item whose answer could come behind its goodbye: such an item would be in no batch and in no checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echo_core import Client, ClosedError, Ragged, Server, Table

pytestmark = [pytest.mark.needs("echo-samplers", "echo-tcp")]


@pytest.mark.parametrize("leaf", [np.zeros((), np.int64), Ragged(np.int64, most=4)])
def test_items_that_are_drawn_once_stay(leaf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    example = {"x": leaf}
    table = Table("queue", example, sampler="fifo", capacity=10, max_times_sampled=1)
    server = Server(tables=[table], batch_size=1, transport="tcp://127.0.0.1:0").start()
    client = Client(server.address, example, timeout=30)
    try:
        for number in range(4):
            client.send({"x": np.array(number) if isinstance(leaf, np.ndarray) else np.array([number])})
        client.wait()
        close = server._opened.close

        def goodbye(*arguments: Any) -> None:
            with pytest.raises(ClosedError, match="draining"):
                client.sample(2)
            close(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(server._opened, "close", goodbye)
            server.drain(5.0)
        assert server.stats()["table/queue/size"] == 4
    finally:
        client.close(0)
        server.close()

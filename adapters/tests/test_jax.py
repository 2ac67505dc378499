"""Tests that batches arrive on a device in order, and that later batches do not change them."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.needs("echo-samplers", "jax")

from echo_core import EchoTimeoutError, Server  # noqa: E402


@pytest.mark.parametrize("ahead", [0, 1])
def test_batches_arrive_in_order_and_stay_what_they_were(ahead: int) -> None:
    from echo_adapters.jax import device_batches

    server = Server({"x": np.zeros(64, np.float32)}, 4, num_buffers=6)
    for i in range(2):
        server.submit_batch({"x": np.full((4, 64), i, np.float32)})
    batches = device_batches(server, ahead=ahead, timeout=20)
    first = next(batches)
    assert isinstance(first["x"], jax.Array) and first["x"].shape == (4, 64)
    double = jax.jit(lambda batch: batch["x"] * 2)
    for i in range(1, 20):  # uses all buffers several times, except the held one
        server.submit_batch({"x": np.full((4, 64), i + 1, np.float32)}, timeout=20)
        assert float(double(next(batches))[0, 0]) == 2 * i
    server.close()
    assert [float(batch["x"][3, 63]) for batch in batches] == [20]
    assert float(first["x"].sum()) == 0, "a held batch was overwritten"


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_no_batch_is_kept_back_for_one_that_does_not_come(ahead: int) -> None:
    from echo_adapters.jax import device_batches

    server = Server({"x": np.zeros(1, np.float32)}, 1, num_buffers=8)
    batches = device_batches(server, ahead=ahead, timeout=5)
    for i in range(4):  # the next batch is made only after this one was learned from
        server.submit_batch({"x": np.full((1, 1), i, np.float32)})
        assert float(next(batches)["x"][0, 0]) == i
    server.close()
    assert list(batches) == []


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_timeout_loses_nothing(ahead: int) -> None:
    from echo_adapters.jax import device_batches

    server, got = Server({"x": np.zeros(1, np.float32)}, 1, num_buffers=8), []
    for first, count in ((0, 1), (1, 2), (3, 3)):
        for i in range(first, first + count):
            server.submit_batch({"x": np.full((1, 1), i, np.float32)})
        with pytest.raises(EchoTimeoutError):
            for batch in device_batches(server, ahead=ahead, timeout=0.1):
                got.append(float(batch["x"][0, 0]))
        assert got == list(range(first + count))
    server.close()


def test_batches_that_are_ready_are_put_on_the_device_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    from echo_adapters import jax as adapter

    put, device_put = [], jax.device_put
    monkeypatch.setattr(adapter.jax, "device_put", lambda array, device: put.append(float(array[0, 0])) or device_put(array, device))
    server = Server({"x": np.zeros(1, np.float32)}, 1, num_buffers=8)
    for i in range(5):
        server.submit_batch({"x": np.full((1, 1), i, np.float32)})
    server.close()
    batches = adapter.device_batches(server, ahead=2)
    for i in range(5):
        assert float(next(batches)["x"][0, 0]) == i
        assert put == list(range(min(i + 3, 5)))
    assert list(batches) == []

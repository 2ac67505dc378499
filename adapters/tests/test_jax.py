"""JAX: batches on a device, in order and unchanged by later ones."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.needs("echo-samplers", "jax")

from echo_core import Server  # noqa: E402


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
    for i in range(1, 20):  # several times round all buffers but the one that is held
        server.submit_batch({"x": np.full((4, 64), i + 1, np.float32)}, timeout=20)
        assert float(double(next(batches))[0, 0]) == 2 * i
    server.close()
    assert [float(batch["x"][3, 63]) for batch in batches] == [20]
    assert float(first["x"].sum()) == 0, "a batch that is held was written over"

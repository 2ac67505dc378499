"""JAX: batches of a server as arrays on a device.

for batch in device_batches(server):
    state, loss = update(state, batch)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import optree

from echo_core import EchoTimeoutError, Server

__all__ = ["device_batches"]


def device_batches(server: Server, device: Any = None, *, ahead: int = 1, timeout: float | None = None) -> Iterator[Any]:
    """Yield batches as pytrees of `jax.Array`, until the server is closed.

    The copy to the device of the next `ahead` batches runs while the caller computes with the one before, if they are ready by then: no
    batch is kept back for one that has not come. The server needs `num_buffers` above `ahead` + 1. On the CPU device JAX may take the
    memory as it is: the batch is then leased for as long as its array lives.
    64-bit leaves become 32-bit unless `jax_enable_x64` is set, as everywhere in JAX.

    Args:
        server: a started server.
        device: a device or a sharding, as `jax.device_put` takes it; None is JAX's default device.
        ahead: batches on their way to the device besides the caller's; 0 or more.
        timeout: seconds to wait for each batch; None waits for ever. Raises as `Server.sample`, when every batch that came was yielded.
    """
    if ahead < 0:
        raise ValueError(f"ahead must be at least 0, not {ahead}")
    waiting: list[Any] = []
    while True:
        try:
            # Only with nothing to give out: the workers may be waiting for what the caller learns from it.
            sample = server.sample(0.0 if waiting else timeout)
        except EchoTimeoutError:
            if not waiting:
                raise
        else:
            if sample is None:
                break
            waiting.append(optree.tree_map(lambda array: jax.device_put(array, device), sample.batch))
            del sample  # or its buffer would be leased for as long as the caller computes
            if len(waiting) <= ahead:
                continue
        yield waiting.pop(0)
    while waiting:
        yield waiting.pop(0)

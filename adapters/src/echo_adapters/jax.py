"""JAX: yields batches of a server as arrays on a device.

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

    While the caller computes with a batch, up to `ahead` further batches are copied to the device if they are ready. A batch is never
    held back to wait for a later one. The server needs `num_buffers` above `ahead` + 1. On the CPU device JAX may use the memory without
    a copy; the batch is then leased as long as its array lives.
    64-bit leaves become 32-bit unless `jax_enable_x64` is set, as everywhere in JAX.

    Args:
        server: a started server.
        device: a device or a sharding, in a form that `jax.device_put` takes; None is JAX's default device.
        ahead: batches on their way to the device in addition to the caller's; 0 or more.
        timeout: seconds to wait for each batch; None waits for ever. Raises the same errors as `Server.sample`, after all received
            batches were yielded.
    """
    if ahead < 0:
        raise ValueError(f"ahead must be at least 0, not {ahead}")
    waiting: list[Any] = []
    while True:
        try:
            # It waits only if no batch is left to yield, because the workers may be waiting for weights that the caller learns from it.
            sample = server.sample(0.0 if waiting else timeout)
        except EchoTimeoutError:
            if not waiting:
                raise
        else:
            if sample is None:
                break
            waiting.append(optree.tree_map(lambda array: jax.device_put(array, device), sample.batch))
            del sample  # otherwise its buffer would stay leased while the caller computes
            if len(waiting) <= ahead:
                continue
        yield waiting.pop(0)
    while waiting:
        yield waiting.pop(0)

"""Servers with samples in them."""

from __future__ import annotations

from typing import Any

from echo_core import Server
from echo_testing.samples import example, stacked


def filled(count: int, batch_size: int = 2, num_buffers: int = 3, **options: Any) -> Server:
    server = Server(example(), batch_size, num_buffers=num_buffers, **options)
    server.submit_batch(stacked(0, 0, count), timeout=0)
    return server

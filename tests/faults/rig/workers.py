"""What the started processes do. Each takes its end of a pipe first."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection as Link
from typing import Any

from echo_core import Client, Server
from echo_testing.samples import example, stacked

__all__ = ["flood", "hold", "idle", "learner", "numbered", "rows"]

Options = dict[str, Any]


def rows(maker: int, first: int, count: int, filler: int) -> list[dict[str, Any]]:
    """Samples `first` on of `maker`, one by one, without the cost of making them so."""
    block = stacked(maker, first, count, filler)
    return [
        {key: array[i : i + 1].reshape(array.shape[1:]) for key, array in block.items()}
        for i in range(count)
    ]


def numbered(maker: int, filler: int) -> Iterator[dict[str, Any]]:
    """Samples of `maker` from 0 on."""
    at_once = max(1, min(512, (1 << 20) // (filler + 16)))
    for first in itertools.count(0, at_once):
        yield from rows(maker, first, at_once, filler)


def flood(
    link: Link,
    address: str,
    maker: int,
    filler: int = 48,
    count: int | None = None,
    options: Options | None = None,
) -> None:
    """Say "ready" when connected; send `count` samples one by one, or until told "stop"; close.

    Says the client's counters in the end, and also whenever told anything else.
    """
    client = Client(address, example(filler), **(options or {}))
    link.send("ready")
    over = threading.Event()

    def answer() -> None:  # also while a send waits
        while link.recv() != "stop":
            link.send(client.stats())
        over.set()

    threading.Thread(target=answer, daemon=True).start()
    for number, sample in enumerate(numbered(maker, filler)):
        if number == count or over.is_set():
            break
        client.send(sample)
    client.close()
    link.send(client.stats())


def hold(link: Link, address: str, maker: int, filler: int, options: Options) -> None:
    """Connect, send one sample, and wait to be killed."""
    client = Client(address, example(filler), **options)
    link.send("ready")
    client.send(rows(maker, 0, 1, filler)[0])
    time.sleep(600)


def idle(link: Link, address: str) -> None:
    """Connect, deliver one sample, and do nothing until told to end."""
    with Client(address, example()) as client:
        client.send(rows(0, 0, 1, 48)[0])
        client.wait()
        link.send("ready")
        link.recv()


def learner(
    link: Link, port: int, batch_size: int, filler: int, options: Options | None = None
) -> None:
    """Serve and take every batch, until told "idle": then do nothing. Say the port, and the
    counters when told to end."""
    transport = {"type": "tcp", "port": port}
    with Server(example(filler), batch_size, transport, **(options or {})) as server:
        link.send(server.port)
        while not link.poll(0):
            try:
                server.sample(timeout=0.2)
            except TimeoutError:
                pass
        if link.recv() == "idle":
            link.send("idle")
            link.recv()
        link.send(server.stats())
        server.close(restarting=True)


def forking_learner(link: Link, scheme: str) -> None:
    """Serve and say the port; told anything, fork a child that does nothing, and say its pid."""
    server = Server(example(), 2, {"type": scheme, "port": 0}).start()
    link.send(server.port)
    link.recv()
    link.send(_idle_child())
    link.recv()


def forking_worker(link: Link, address: str) -> None:
    """Connect and say so; told anything, fork a child that does nothing, and say its pid."""
    client = Client(address, example())
    link.send("connected")
    link.recv()
    link.send(_idle_child())
    link.recv()
    client.close()


def _idle_child() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    while child == 0:
        signal.pause()
    return child

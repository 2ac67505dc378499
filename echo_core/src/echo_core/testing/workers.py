"""The functions that other processes of a test run. They can be imported without pytest, and every argument can be pickled."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection as Pipe
from typing import Any

from ..base.address import Address
from ..client.client import Client
from ..plugins.discovery import transport_class
from ..server.server import Server
from ..store.steps.steps import Steps
from ..wire.later import Later
from ..wire.peer import Peer
from ..wire.transport import Transport
from .processes import LONG
from .samples import example, sample, stacked

__all__ = ["flood", "learn", "neglect", "park", "pour", "serve", "shelve", "use", "wander"]


def flood(address: str, maker: int, count: int, batch: int, options: dict[str, Any]) -> None:
    """Send samples 0 to count - 1 of `maker`, `batch` at a time (0: one by one), and close."""
    with Client(address, example(), name=f"worker-{maker}", **options) as client:
        use(client, maker, count, batch)


def use(client: Client, maker: int, count: int, batch: int = 0) -> None:
    """Do the same as `flood`, with a client that was pickled."""
    with client:
        for number in range(0, count, batch or 1):
            if batch:
                client.send_batch(stacked(maker, number, min(batch, count - number)))
            else:
                client.send(sample(maker, number))


def pour(address: str, maker: int, filler: int, subscribe: bool, ready: Pipe, options: Any) -> None:
    """Send until killed; reports "ready" once it is sending."""
    client = Client(address, example(filler), name=f"worker-{maker}", **options)
    if subscribe:
        client.weights(timeout=LONG)
    number = 0
    while True:
        client.send(sample(maker, number, filler))
        number += 1
        if number == 20:
            client.wait()
            ready.send("ready")


def rest(address: str, maker: int, count: int, ready: Pipe, options: dict[str, Any]) -> None:
    """Send `count` samples, report "ready" once they are acknowledged, and stay connected until killed."""
    client = Client(address, example(), name=f"worker-{maker}", **options)
    client.send_batch(stacked(maker, 0, count))
    client.wait()
    ready.send("ready")
    while True:
        time.sleep(60)


def park(address: str, op: str, count: int, ready: Pipe, options: dict[str, Any]) -> None:
    """Make `count` requests that are answered later, report "asked", and stay connected until killed."""
    client = Client(address, example(), name="asker", **options)
    asked = [client._requests.ask(op, {"n": n}) for n in range(count)]
    ready.send("asked")
    time.sleep(LONG)
    del asked


def serve(address: str, ready: Pipe, options: dict[str, Any]) -> None:
    """Serve "kit/pid", and "kit/sleep", which reports "asleep" and does not return; until killed."""
    client = Client(address, example(), name="serving", **options)

    def sleep(body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        ready.send("asleep")
        time.sleep(LONG)
        return {}, b""

    client.serve("kit/pid", lambda body, blob: ({"pid": os.getpid()}, blob))
    client.serve("kit/sleep", sleep)
    ready.send("ready")
    time.sleep(LONG)


def shelve(address: str, op: str, ready: Pipe, options: dict[str, Any] | None = None) -> None:
    """A learner that never answers `op`, until killed; reports its address. `options` are those of its transport."""
    kept: list[Later] = []

    def keep(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Later:
        kept.append(later := Later(peer))
        return later

    with Server(example(), 10, transport=_at(address, options)) as server:
        server.serve(op, keep)
        ready.send(str(server.address))
        time.sleep(LONG)


def wander(address: str, maker: int, environments: int, length: int, ready: Pipe, options: Any) -> None:
    """Send episodes of `length` steps in each environment, sample by sample. In the middle of the third it reports "ready" and is killed."""
    client = Client(address, Steps(example()), name=f"worker-{maker}", **options)
    for number in range(2 * length + length // 2):
        for stream in range(environments):
            client.send(sample(maker, number + 1000 * stream), end="terminated" if number % length == length - 1 else None, stream=stream)
    client.wait()
    ready.send("ready")
    time.sleep(60)


def learn(address: str, batch_size: int, ready: Pipe, options: dict[str, Any] | None = None) -> None:
    """A learner that takes batches until killed; reports its address. `options` are those of its transport."""
    with Server(example(), batch_size, transport=_at(address, options)) as server:
        ready.send(str(server.address))
        for _ in server.dataset_iter():
            pass
        time.sleep(60)


def neglect(address: str, ready: Pipe, options: dict[str, Any] | None = None) -> None:
    """A learner with room for two samples that takes none, until killed; reports its address. `options` are those of its transport."""
    with Server(example(), 1, transport=_at(address, options), num_buffers=2) as server:
        ready.send(str(server.address))
        time.sleep(LONG)


def _at(address: str, options: dict[str, Any] | None) -> Transport:
    where = Address.parse(address)
    return transport_class(where.scheme).at(where, **(options or {}))

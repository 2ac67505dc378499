"""The functions that other processes of a test run. They can be imported without pytest, and every argument can be pickled."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from typing import Any

import echo_core
from echo_core.base.address import Address
from echo_core.client.client import Client
from echo_core.plugins.discovery import transport_class
from echo_core.server.server import Server
from echo_core.wire.later import Later
from echo_core.wire.peer import Peer
from echo_core.wire.transport import Transport

from .processes import LONG
from .samples import example, record_table, sample, stacked

__all__ = [
    "LARGE",
    "Environment",
    "answer",
    "draw",
    "flood",
    "keep",
    "labelled_tables",
    "learn",
    "neglect",
    "park",
    "pour",
    "run",
    "serve",
    "shelve",
    "store",
    "use",
    "wander",
]

LARGE = bytes(range(256)) * (8 << 12)  # 8 MiB


class Environment:
    """The environment variables of the test, which a process adopts when it unpickles this object.

    A process that a server has forked has the variables of that server, which an earlier test may have started. Pass this object before the
    other arguments: a pickled client connects when it is unpickled, and needs the token.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _set_environment, (dict(os.environ),)


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def run(environment: object, target: Callable[..., None], *arguments: Any) -> None:
    """Call `target` in a process that was given an `Environment` before."""
    target(*arguments)


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


def draw(address: str, n: int, timeout: float, ready: Pipe, options: dict[str, Any]) -> None:
    """Report "ready", draw n items of the first table within `timeout` seconds, report their numbers or the class of the error, and stay
    connected until killed."""
    client = Client(address, example(), name="drawing", **options)
    ready.send("ready")
    try:
        ready.send(client.sample(n, timeout).batch["number"].tolist())
    except Exception as error:
        ready.send(type(error).__name__)
    time.sleep(LONG)


def serve(address: str, ready: Pipe, options: dict[str, Any]) -> None:
    """Serve "kit/pid", "kit/large", which reports "answering" and returns 8 MiB, and "kit/sleep", which reports "asleep" and does not return; until
    killed."""
    client = Client(address, example(), name="serving", **options)

    def sleep(body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        ready.send("asleep")
        time.sleep(LONG)
        return {}, b""

    def large(body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        ready.send("answering")
        return body, LARGE

    client.serve("kit/large", large)
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


def store(address: str, ready: Pipe, options: dict[str, Any] | None = None) -> None:
    """A learner with an empty queue, until killed; reports its address, and then how many draws wait, whenever that changes."""
    table = echo_core.Table("queue", example(), capacity=64, sampler="fifo", rate_limiter=echo_core.Queue(64))
    with Server(tables=[table], batch_size=1, transport=_at(address, options)) as server:
        ready.send(str(server.address))
        told = 0
        for _ in range(int(LONG / 0.01)):
            if (now := int(server.stats()["table/queue/draws_waiting"])) != told:
                ready.send(told := now)
            time.sleep(0.01)


def answer(address: str, told: Pipe, ready: Pipe, options: dict[str, Any] | None = None) -> None:
    """A learner that reports its address and serves two operations until killed: "kit/when-told" reports "answering" and waits for "go"; "kit/large"
    reports "answering" and answers with 8 MiB from another thread. When it is told "ask", it calls "kit/task" of its only client and reports the result.
    `options` are those of its transport."""
    go = threading.Event()

    def when_told(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        ready.send("answering")
        go.wait(LONG)
        return body, blob

    def large(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Later:
        later = Later(peer)
        ready.send("answering")
        threading.Thread(target=later, args=(body, LARGE), daemon=True).start()
        return later

    def ask(server: Server) -> None:
        body, blob = server.ask(server.peers()[0], "kit/task", {"n": 1}, timeout=LONG)
        ready.send({**body, "whole": blob == LARGE})

    with Server(example(), 10, transport=_at(address, options)) as server:
        server.serve("kit/when-told", when_told)
        server.serve("kit/large", large)
        ready.send(str(server.address))
        while told.poll(2 * LONG):
            if told.recv() == "go":
                go.set()
            else:
                ask(server)


def wander(address: str, maker: int, environments: int, length: int, ready: Pipe, options: Any) -> None:
    """Send episodes of `length` steps in each environment, sample by sample. In the middle of the third it reports "ready" and is killed."""
    client = Client(address, echo_core.Steps(example()), name=f"worker-{maker}", **options)
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


def labelled_tables(capacity: int = 4096) -> list[Any]:
    """Two tables that keep priorities and policy versions."""
    return [echo_core.Table(name, example(), capacity=capacity, sampler="max_heap", policy_versions=True) for name in ("first", "second")]


def keep(address: str, ready: Pipe, options: dict[str, Any] | None = None) -> None:
    """A learner with two tables that keeps what it gets until it is killed; reports its address. `options` are those of its transport."""
    with Server(tables=labelled_tables(), batch_size=4, transport=_at(address, options)) as server:
        ready.send(str(server.address))
        time.sleep(LONG)


def keep_records(address: str, ready: Pipe, options: dict[str, Any] | None = None) -> None:
    """A learner with the table of samples of varying length of samples.py, until it is killed; reports its address."""
    with Server(tables=[record_table()], batch_size=1, transport=_at(address, options)) as server:
        ready.send(str(server.address))
        time.sleep(LONG)


def neglect(address: str, ready: Pipe, options: dict[str, Any] | None = None) -> None:
    """A learner with room for two samples that takes none, until killed; reports its address. `options` are those of its transport."""
    with Server(example(), 1, transport=_at(address, options), num_buffers=2) as server:
        ready.send(str(server.address))
        time.sleep(LONG)


def _at(address: str, options: dict[str, Any] | None) -> Transport:
    where = Address.parse(address)
    return transport_class(where.scheme).at(where, **(options or {}))

"""Echo: a server with one replay table; its learner samples where the table is, or over TCP as well."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from benchmarks.payloads import Payload, Tree
from benchmarks.replay.adapters.base import ALPHA, BETA, Buffer, System, Worker
from echo_core import Client, Server


class EchoBuffer(Buffer):
    def __init__(self, payload: Payload, capacity: int, batch: int, prioritized: bool, transport: str | None) -> None:
        super().__init__(payload, capacity, batch)
        sampler: Any = {"type": "prioritized", "alpha": ALPHA} if prioritized else "uniform"
        self._server = Server(payload.example(), batch, transport=transport, sampler=sampler, capacity=capacity, seed=1)
        self._table = self._server.table()
        self._table.beta = BETA
        self.add, self.extend, self.sample = self._table.submit, self._table.submit_batch, self._table.sample
        if transport is not None:
            self._server.start()
            self.address = str(self._server.address)

    def pair(self, priorities: np.ndarray) -> None:
        sample = self.sample()
        self._table.update_priorities(sample.keys, priorities)

    def arrays(self, batch: Any) -> list[np.ndarray]:
        return self.payload.arrays(batch.batch)

    def touch(self, batch: Any) -> None:
        self.payload.touch(batch.batch)

    def inserted(self) -> int:
        return int(self._table.counters()["inserts"])


class EchoWorker(Worker):
    def __init__(self, address: str, payload: Payload) -> None:
        self._client = Client(address, payload.example())

    def flood(self, items: list[Tree]) -> NoReturn:
        send = self._client.send
        while True:
            for item in items:
                send(item)


class Echo(System):
    name = "echo"
    can = frozenset({"insert", "uniform", "prioritized", "writer", "server", "memory"})

    def buffer(self, payload: Payload, capacity: int, batch: int, prioritized: bool) -> Buffer:
        return EchoBuffer(payload, capacity, batch, prioritized, None)

    def server(self, payload: Payload, capacity: int, batch: int, prioritized: bool, workers: int) -> Buffer:
        return EchoBuffer(payload, capacity, batch, prioritized, "tcp://127.0.0.1:0")

    def worker(self, address: str, payload: Payload) -> Worker:
        return EchoWorker(address, payload)


class RemoteBuffer(EchoBuffer):
    """The learner is a client too, as Reverb's always is: it draws over TCP, a batch ahead, from a server that is in the same process."""

    def __init__(self, payload: Payload, capacity: int, batch: int) -> None:
        super().__init__(payload, capacity, batch, False, "tcp://127.0.0.1:0")
        self._learner = Client(self.address, payload.example())
        self._batches = self._learner.dataset_iter(batch, prefetch=2)
        self.sample = lambda: next(self._batches)


class EchoRemote(Echo):
    name = "echo-remote"
    can = frozenset({"server"})

    def server(self, payload: Payload, capacity: int, batch: int, prioritized: bool, workers: int) -> Buffer:
        return RemoteBuffer(payload, capacity, batch)

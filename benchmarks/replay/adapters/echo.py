"""Echo: a server with one replay table; its learner samples where the table is, or over TCP as well."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from benchmarks.payloads import Payload, Tree
from benchmarks.replay.adapters.base import ALPHA, BETA, EPISODE, Buffer, Stacks, System, Worker
from benchmarks.replay.items import ITEMS
from echo_core import Client, FrameStack, NStep, Server, Table


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


class EchoStacks(Stacks):
    """Steps are stored once, and stacked when they are sampled."""

    def __init__(self, items: int, depth: int) -> None:
        step = ITEMS["7KB"].example()
        steps = items + items // EPISODE + 1  # the frame that an episode ends with is a step, too
        sampler = {"type": "prioritized", "alpha": ALPHA}
        table = Table("stacks", step, capacity=steps, items=NStep(1), stack=FrameStack(depth, "frame"), sampler=sampler, seed=1)
        self._server = Server(tables=[table], batch_size=64)
        stored: Any = self._server.table()
        self._writer = stored.writer()

    def add(self, stack: list[np.ndarray], following: np.ndarray, ended: bool) -> None:
        self._writer.send({"frame": stack[-1], "action": np.int32(0), "reward": np.float32(0)})
        if ended:
            self._writer.send({"frame": following, "action": np.int32(0), "reward": np.float32(0)}, end="boundary")

    def sample(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        drawn: Any = self._server.sample(n=n)
        return drawn.batch["frame"], drawn.next["frame"]


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
    can = frozenset({"insert", "uniform", "prioritized", "writer", "server", "beside", "memory", "stacks"})

    def stacks(self, items: int, depth: int) -> Stacks:
        return EchoStacks(items, depth)

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
    can = frozenset({"server", "beside"})

    def server(self, payload: Payload, capacity: int, batch: int, prioritized: bool, workers: int) -> Buffer:
        return RemoteBuffer(payload, capacity, batch)

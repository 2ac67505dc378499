"""ucxx, UCX for Python: asyncio, one message a sample, in its polling mode, which is its quickest.

A worker awaits each send; the learner has one coroutine for each connection that receives into a buffer of its own. Nothing is acknowledged.
"""

from __future__ import annotations

import asyncio
import collections
from typing import Any, NoReturn

import numpy as np
import ucxx

from benchmarks.adapters.base import Learner, MessageLearner, System, Worker
from benchmarks.payloads import Payload, Tree

POLLING = "polling"


class UcxxLearner(MessageLearner):
    def __init__(self, payload: Payload, batch_size: int, connections: int) -> None:
        super().__init__(payload, batch_size)
        ucxx.init(progress_mode=POLLING)
        self._loop = asyncio.new_event_loop()
        self._whole: collections.deque[Any] = collections.deque()
        # A receiver waits while so many are not taken: what it received must stay where it is until then.
        self._most = 2 * batch_size
        self._loop.run_until_complete(self._listen())

    async def _listen(self) -> None:
        self._listener = ucxx.create_listener(self._serve)
        self.address = f"127.0.0.1:{self._listener.port}"

    async def _serve(self, endpoint: Any) -> None:
        size = self.payload.sample_bytes
        buffers = [np.empty(size, np.uint8) for _ in range(4 * self.batch_size)]
        while True:
            for buffer in buffers:
                while len(self._whole) >= self._most:
                    await asyncio.sleep(0)
                await endpoint.recv(buffer)
                self._whole.append(buffer)

    def sample(self) -> Any:
        return self._loop.run_until_complete(self._batch())

    async def _batch(self) -> list[Any]:
        while len(self._whole) < self.batch_size:
            await asyncio.sleep(0)
        return [self._whole.popleft() for _ in range(self.batch_size)]


class UcxxWorker(Worker):
    def __init__(self, address: str, payload: Payload) -> None:
        self._pack = payload.pack
        self._address = address

    def flood(self, samples: list[Tree]) -> NoReturn:
        # It connects only now, because both ends' coroutines take part in that.
        async def forever() -> NoReturn:
            ucxx.init(progress_mode=POLLING)
            host, _, port = self._address.rpartition(":")
            endpoint = await ucxx.create_endpoint(host, int(port))
            send, pack = endpoint.send, self._pack
            while True:
                for sample in samples:
                    await send(np.frombuffer(pack(sample), np.uint8))

        asyncio.run(forever())
        raise AssertionError("unreachable")


class Ucxx(System):
    name = "ucxx"
    can = frozenset({"ucx", "ucx-tcp"})

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return UcxxLearner(payload, batch_size, connections)

    def worker(self, address: str, payload: Payload) -> Worker:
        return UcxxWorker(address, payload)

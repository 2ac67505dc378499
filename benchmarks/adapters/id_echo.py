"""id-echo, the original Echo: `import echo`, default options, over its own TCP or in-process."""

from __future__ import annotations

import echo

from benchmarks.adapters.base import ArrayLearner, Learner, System, Worker
from benchmarks.payloads import Payload


class IdEchoLearner(ArrayLearner):
    def __init__(self, payload: Payload, batch_size: int, connections: int) -> None:
        super().__init__(payload, batch_size)
        transport = echo.TcpTransport(port=0) if connections else None
        self._server = echo.Server(payload.example(), batch_size, transport=transport)
        if connections:
            self._server.start()
            self.address = f"127.0.0.1:{self._server.port}"
        self.sample = self._server.sample
        self.submit = self._server.submit


class IdEchoWorker(Worker):
    def __init__(self, address: str, payload: Payload) -> None:
        host, _, port = address.rpartition(":")
        self._client = echo.TcpClient(host, int(port), payload.example())  # type: ignore[arg-type]
        self.send = self._client.send  # type: ignore[assignment]


class IdEcho(System):
    name = "id-echo"
    can = frozenset({"tcp", "shm", "inprocess", "batches", "crowd"})  # "shm": TCP is all it has between processes of one machine

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return IdEchoLearner(payload, batch_size, connections)

    def worker(self, address: str, payload: Payload) -> Worker:
        return IdEchoWorker(address, payload)

"""pyzmq: one PULL socket, a PUSH socket per worker, samples as plain bytes, no acknowledgement."""

from __future__ import annotations

from typing import Any

import zmq

from benchmarks.adapters.base import Learner, MessageLearner, System, Worker
from benchmarks.payloads import Payload, Tree

#: Messages are copied below this size and handed over by reference above, at both ends: what pyzmq
#: recommends, and its own default threshold.
COPY_BELOW = 65536

#: Bytes a socket may queue. The default is 1000 messages: a gigabyte of 1 MB samples.
QUEUE_BYTES = 64 << 20


def _queue(socket: zmq.Socket[bytes], payload: Payload, at_least: int) -> None:
    depth = max(at_least, min(1000, QUEUE_BYTES // payload.sample_bytes))
    socket.set_hwm(depth)
    socket.linger = 0


class ZmqLearner(MessageLearner):
    def __init__(self, payload: Payload, batch_size: int, connections: int) -> None:
        super().__init__(payload, batch_size)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        context.set(zmq.MAX_SOCKETS, 4096)
        self._pull = context.socket(zmq.PULL)
        _queue(self._pull, payload, batch_size)
        if connections:
            port = self._pull.bind_to_random_port("tcp://127.0.0.1")
            self.address = f"tcp://127.0.0.1:{port}"
        else:
            self._pull.bind("inproc://store")
            self._push = context.socket(zmq.PUSH)
            _queue(self._push, payload, batch_size)
            self._push.connect("inproc://store")
        self._copy = payload.sample_bytes < COPY_BELOW

    def sample(self) -> Any:
        recv, copy = self._pull.recv, self._copy
        if copy:
            return [recv() for _ in range(self.batch_size)]
        return [recv(copy=False).buffer for _ in range(self.batch_size)]

    def submit(self, sample: Tree) -> None:
        self._push.send(self.payload.pack(sample), 0, self._copy)


class ZmqWorker(Worker):
    def __init__(self, address: str, payload: Payload) -> None:
        self._pack = payload.pack
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        context.set(zmq.MAX_SOCKETS, 4096)
        self._push = context.socket(zmq.PUSH)
        _queue(self._push, payload, 1)
        self._push.connect(address)
        self._copy = payload.sample_bytes < COPY_BELOW

    def send(self, sample: Tree) -> None:
        self._push.send(self._pack(sample), 0, self._copy)


class PyZmq(System):
    name = "pyzmq"
    can = frozenset({"tcp", "inprocess", "crowd"})

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return ZmqLearner(payload, batch_size, connections)

    def worker(self, address: str, payload: Payload) -> Worker:
        return ZmqWorker(address, payload)

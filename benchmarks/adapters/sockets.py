"""Bare sockets: what the loopback of this machine carries, and so a ceiling for large samples, whoever sends them.

A worker hands its arrays to the kernel as they are; the learner receives each message into a buffer that it uses again and
again. Nothing is checked, acknowledged, kept for sending again, or made into arrays.
"""

from __future__ import annotations

import select
import socket
from typing import Any

from benchmarks.adapters.base import Learner, MessageLearner, System, Worker
from benchmarks.payloads import Payload, Tree


class SocketLearner(MessageLearner):
    def __init__(self, payload: Payload, batch_size: int, connections: int) -> None:
        super().__init__(payload, batch_size)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=connections)
        self.address = "127.0.0.1:{1}".format(*self._listener.getsockname())
        self._expected = connections
        self._poll = select.epoll()
        self._peers: dict[int, socket.socket] = {}
        self._partial: dict[int, tuple[memoryview, int]] = {}
        self._unused = [memoryview(bytearray(payload.sample_bytes)) for _ in range(2 * batch_size + connections)]
        self._whole: list[memoryview] = []
        self._out: list[memoryview] = []

    def _accept(self) -> None:
        while len(self._peers) < self._expected:
            peer, _ = self._listener.accept()
            peer.setblocking(False)
            self._peers[peer.fileno()] = peer
            self._partial[peer.fileno()] = self._unused.pop(), 0
            self._poll.register(peer, select.EPOLLIN)

    def sample(self) -> Any:
        self._accept()
        self._unused += self._out
        while len(self._whole) < self.batch_size:
            for fd, _ in self._poll.poll():
                buffer, got = self._partial[fd]
                try:
                    more = self._peers[fd].recv_into(buffer[got:])
                except BlockingIOError:
                    continue
                if not more:
                    raise ConnectionError("a worker has left")
                got += more
                if got == len(buffer):
                    self._whole.append(buffer)
                    buffer, got = self._unused.pop(), 0
                self._partial[fd] = buffer, got
        self._out, self._whole = self._whole[: self.batch_size], self._whole[self.batch_size :]
        return self._out


class SocketWorker(Worker):
    def __init__(self, address: str, payload: Payload) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._arrays = payload.arrays

    def send(self, sample: Tree) -> None:
        parts = [memoryview(array).cast("B") for array in self._arrays(sample)]
        while parts:
            sent = self._socket.sendmsg(parts)
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = parts[0][sent:]


class Sockets(System):
    name = "sockets"
    can = frozenset({"tcp"})

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return SocketLearner(payload, batch_size, connections)

    def worker(self, address: str, payload: Payload) -> Worker:
        return SocketWorker(address, payload)

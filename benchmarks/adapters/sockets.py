"""Loops in C over bare sockets: the ceiling for large samples on this machine.

``sockets`` hands its arrays to the kernel as they are and receives straight into rows: nothing is checked, acknowledged, or kept. ``sockets-kept``
copies each sample once before, as any library has to that promises to send again what a lost connection did not deliver, and is the same
otherwise. Neither runs any Python per sample.
"""

from __future__ import annotations

import ctypes
import socket
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from benchmarks.adapters.base import Learner, MessageLearner, System, Worker
from benchmarks.compiled import compiled
from benchmarks.payloads import Payload, Tree

SOURCE = Path(__file__).with_suffix(".c")
FRAME = 128 << 10  # bytes that a worker gives to one call, if samples are smaller
AHEAD = 256 << 10  # bytes of rows that the learner offers to one call
WINDOW = 2 << 20  # bytes that are kept


def library() -> ctypes.CDLL:
    """The compiled loops; ImportError without a C compiler."""
    loaded = ctypes.CDLL(str(compiled(SOURCE, ".so", "-shared", "-fPIC")))
    loaded.sockets_learner.restype = ctypes.c_void_p
    return loaded


class SocketLearner(MessageLearner):
    def __init__(self, payload: Payload, batch_size: int, connections: int) -> None:
        super().__init__(payload, batch_size)
        self._loops = library()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=connections)
        self.address = "127.0.0.1:{1}".format(*self._listener.getsockname())
        self._expected = connections
        self._peers: list[socket.socket] = []
        size = payload.sample_bytes
        ahead = min(64, max(1, AHEAD // size))
        rows = 2 * batch_size + (2 * connections + 1) * ahead
        memory = np.zeros((rows, size), np.uint8)
        self._rows = [memoryview(row) for row in memory]  # type: ignore[arg-type]
        self._out = (ctypes.c_int * batch_size)()
        self._learner = ctypes.c_void_p(
            self._loops.sockets_learner(ctypes.c_size_t(size), batch_size, connections, ahead, ctypes.c_void_p(memory.ctypes.data), rows)
        )
        self._memory = memory

    def sample(self) -> Any:
        while len(self._peers) < self._expected:
            peer, _ = self._listener.accept()
            self._peers.append(peer)
            self._loops.sockets_welcome(self._learner, peer.fileno())
        if self._loops.sockets_take(self._learner, self._out):
            raise ConnectionError("a worker has left")
        return [self._rows[i] for i in self._out]


class SocketWorker(Worker):
    def __init__(self, address: str, payload: Payload, keeps: bool) -> None:
        host, _, port = address.rpartition(":")
        self._loops = library()
        self._socket = socket.create_connection((host, int(port)))
        self._payload = payload
        self._window = np.zeros(max(WINDOW, 2 * payload.sample_bytes), np.uint8) if keeps else None

    def _flood(self, samples: list[Tree], rounds: int) -> None:
        arrays = [array for sample in samples for array in self._payload.arrays(sample)]
        leaves = len(arrays) // len(samples)
        window = self._window
        failed = self._loops.sockets_flood(
            self._socket.fileno(),
            (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays)),
            (ctypes.c_size_t * leaves)(*(array.nbytes for array in arrays[:leaves])),
            leaves,
            len(samples),
            ctypes.c_long(rounds),
            ctypes.c_size_t(FRAME),
            ctypes.c_void_p(window.ctypes.data if window is not None else None),
            ctypes.c_size_t(window.nbytes if window is not None else 0),
        )
        if failed:
            raise ConnectionError("the learner has left")

    def send(self, sample: Tree) -> None:
        self._flood([sample], 1)

    def flood(self, samples: list[Tree]) -> NoReturn:
        self._flood(samples, -1)
        raise AssertionError("it floods until it is killed")


class Sockets(System):
    name = "sockets"
    can = frozenset({"tcp"})
    keeps = False

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return SocketLearner(payload, batch_size, connections)

    def worker(self, address: str, payload: Payload) -> Worker:
        return SocketWorker(address, payload, self.keeps)


class SocketsKept(Sockets):
    name = "sockets-kept"
    keeps = True

"""Echo: `Server` and `Client` with default options, over TCP or in-process, and through shared memory, gRPC and UCX."""

from __future__ import annotations

import itertools
import os
from typing import Any, NoReturn

import numpy as np

from benchmarks.adapters.base import ArrayLearner, Learner, System, Worker
from benchmarks.payloads import Payload, Tree
from echo_core import Client, Server

PAGE = 4096
WRITTEN_BYTES = 1 << 30  # several windows


class EchoLearner(ArrayLearner):
    def __init__(self, payload: Payload, batch_size: int, connections: int, address: Any = "tcp://127.0.0.1:0") -> None:
        super().__init__(payload, batch_size)
        transport = address if connections else None
        self._server = Server(payload.example(), batch_size, transport=transport)
        if connections:
            self._server.start()
            self.address = str(self._server.address)
        self.sample = self._server.sample
        self.submit = self._server.submit
        self.submit_batch = self._server.submit_batch
        self.publish = self._server.publish


class EchoWorker(Worker):
    def __init__(self, address: str, payload: Payload, **options: Any) -> None:
        self._client = Client(address, payload.example(), **options)
        self.send = self._client.send
        self.send_batch = self._client.send_batch

    def weights(self, newer_than: int) -> tuple[Tree, int]:  # type: ignore[override]
        found = self._client.weights(None, newer_than)
        return found.params, found.version


class EchoCore(System):
    name = "echo"
    can = frozenset({"tcp", "tcp-batch", "inprocess", "inprocess-batch", "batches", "crowd", "weights"})

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return EchoLearner(payload, batch_size, connections)

    def worker(self, address: str, payload: Payload) -> Worker:
        return EchoWorker(address, payload)


class EchoShm(EchoCore):
    """The same calls with another address: its columns stand beside those of TCP, which is what it replaces on one machine."""

    name = "echo-shm"
    can = frozenset({"tcp", "tcp-batch", "shm", "shm-batch", "weights"})

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return EchoLearner(payload, batch_size, connections, f"shm://echo-benchmark-{os.getpid()}")


class EchoShmPrivate(EchoShm):
    """Workers that see nothing of the learner's store: it copies from a memory that each shares with it alone."""

    name = "echo-shm-private"

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        transport = {"type": "shm", "path": f"echo-benchmark-{os.getpid()}", "mode": "private"}
        return EchoLearner(payload, batch_size, connections, transport)


class EchoGrpc(EchoCore):
    """The same over gRPC, for the cases that cross processes."""

    name = "echo-grpc"
    can = frozenset({"tcp", "tcp-batch", "batches"})

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return EchoLearner(payload, batch_size, connections, "grpc://127.0.0.1:0")


class InPlaceWorker(EchoWorker):
    """Has an environment that makes its samples where they are sent from.

    What it costs to make them is left out, as with those who send samples that were made before the clock starts: the first are written
    whole, until every message that circulates has memory of its own and the learner was checked; then a byte in each page.
    """

    def __init__(self, address: str, payload: Payload, **options: Any) -> None:
        super().__init__(address, payload, **options)
        self._payload = payload

    def flood(self, samples: list[Tree]) -> NoReturn:
        reserve, arrays = self._client.reserve, self._payload.arrays
        whole = max(1, WRITTEN_BYTES // self._payload.sample_bytes)
        for number, sample in enumerate(itertools.cycle(samples)):
            with reserve() as slot:
                for to, made in zip(arrays(slot.sample), arrays(sample), strict=True):
                    if number < whole:
                        to[...] = made
                    else:
                        to.reshape(-1).view(np.uint8)[::PAGE] = 1
                del to
                slot.commit()
        raise AssertionError


class EchoGrpcInPlace(EchoGrpc):
    """Samples that are made in the messages that they travel in (`client.reserve`)."""

    name = "echo-grpc-inplace"
    can = frozenset({"tcp"})

    def worker(self, address: str, payload: Payload) -> Worker:
        return InPlaceWorker(address, payload)


class EchoRdma(EchoCore):
    """The same over UCX."""

    name = "echo-rdma"
    can = frozenset({"ucx", "ucx-tcp"})

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return EchoLearner(payload, batch_size, connections, "rdma://127.0.0.1:0")


class EchoRdmaEach(EchoRdma):
    """Every sample in a message of its own, for comparison with those who cannot do otherwise."""

    name = "echo-rdma-each"

    def worker(self, address: str, payload: Payload) -> Worker:
        return EchoWorker(address, payload, max_coalesced_bytes=1)


class EchoTcps(EchoCore):
    """TCP with TLS, on a certificate of the user's own authority."""

    name = "echo-tcps"
    can = frozenset({"tcp", "tcp-batch"})

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return EchoLearner(payload, batch_size, connections, "tcps://127.0.0.1:0")


class EchoTcpChecksum(EchoCore):
    """TCP with a checksum over every byte."""

    name = "echo-tcp-checksum"
    can = frozenset({"tcp", "tcp-batch"})

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return EchoLearner(payload, batch_size, connections, "tcp://127.0.0.1:0?checksum=true")

    def worker(self, address: str, payload: Payload) -> Worker:
        return EchoWorker(address, payload, checksum=True)


class EchoGrpcs(EchoCore):
    """gRPC with TLS, likewise."""

    name = "echo-grpcs"
    can = frozenset({"tcp", "tcp-batch"})

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return EchoLearner(payload, batch_size, connections, "grpcs://127.0.0.1:0")

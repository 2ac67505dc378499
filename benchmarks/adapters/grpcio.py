"""grpcio: one bidirectional stream per worker carrying samples as plain bytes.

No protobuf is involved: generic handlers without serializers pass bytes through. The learner
answers every 64 messages with one byte on the way back, so that a worker could know what arrived.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc
import numpy as np

from benchmarks.adapters.base import Learner, MessageLearner, System, Worker
from benchmarks.payloads import Payload, Tree

METHOD = "/benchmarks.Experience/Stream"
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Without it, all channels of a process to one address share a connection.
    ("grpc.use_local_subchannel_pool", 1),
]
ACK_EVERY = 64
FULL_BYTES = 1 << 20  # of a message that holds many samples: what carries most, tried from 256 KiB to 4 MiB
WINDOW_BYTES = 16 << 20  # of messages that a worker keeps, as Echo's does over gRPC
KEPT_BYTES = 31 << 20  # once a block so large was freed, glibc keeps smaller ones, and no page of a message is fetched again


class GrpcLearner(MessageLearner):
    def __init__(self, payload: Payload, batch_size: int, connections: int) -> None:
        super().__init__(payload, batch_size)
        # Bounded, so that a slow learner pushes back through the stream's flow control.
        self._arrived: queue.Queue[bytes] = queue.Queue(maxsize=3 * batch_size)
        self._grpc = grpc.server(ThreadPoolExecutor(max_workers=connections), options=OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self._stream)
        self._grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmarks.Experience", {"Stream": handler}),))
        self.address = f"127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"
        self._grpc.start()

    def _stream(self, messages: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        put = self._arrived.put
        for number, message in enumerate(messages, start=1):
            put(message)
            if number % ACK_EVERY == 0:
                yield b"\x01"

    def sample(self) -> Any:
        get = self._arrived.get
        return [get() for _ in range(self.batch_size)]


class GrpcWorker(Worker):
    def __init__(self, address: str, payload: Payload) -> None:
        self._pack = payload.pack
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        grpc.channel_ready_future(self._channel).result(timeout=60)
        self._call = self._channel.stream_stream(METHOD)
        self._outbox: queue.SimpleQueue[bytes] | None = None

    def send(self, sample: Tree) -> None:
        # grpcio pulls messages from an iterator in a thread of its own; a queue feeds it.
        if self._outbox is None:
            self._outbox = queue.SimpleQueue()
            self._begin(iter(self._outbox.get, None))
        self._outbox.put(self._pack(sample))

    def _begin(self, messages: Iterator[bytes]) -> None:
        """Send them from grpcio's thread, and read the replies in another."""
        replies = self._call(messages)
        threading.Thread(target=lambda: list(replies), daemon=True).start()

    def flood(self, samples: list[Tree]) -> NoReturn:
        # The iterator makes the messages itself: no queue, and flow control reaches the loop.
        def forever() -> Iterator[bytes]:
            pack = self._pack
            while True:
                for sample in samples:
                    yield pack(sample)

        for _reply in self._call(forever()):
            pass
        raise ConnectionError("the learner ended the stream")


class GrpcBytesWorker(GrpcWorker):
    """Messages that were made before the clock starts, round and round."""

    def __init__(self, address: str, payload: Payload) -> None:
        bytes(KEPT_BYTES)
        super().__init__(address, payload)

    def flood(self, samples: list[Tree]) -> NoReturn:
        for _reply in self._call(itertools.cycle([self._pack(sample) for sample in samples])):
            pass
        raise ConnectionError("the learner ended the stream")


class GrpcFullLearner(GrpcLearner):
    """Takes messages of many samples, which lie one after another in them."""

    def __init__(self, payload: Payload, batch_size: int, connections: int) -> None:
        super().__init__(payload, batch_size, connections)
        self._samples: deque[memoryview] = deque()

    def sample(self) -> Any:
        samples, size = self._samples, self.payload.sample_bytes
        while len(samples) < self.batch_size:
            message = memoryview(self._arrived.get())
            samples.extend(message[at : at + size] for at in range(0, len(message), size))
        return [samples.popleft() for _ in range(self.batch_size)]


class GrpcKeptLearner(GrpcFullLearner):
    """The same with every byte copied once, to where the learner wants it."""

    def _stream(self, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        return super()._stream((np.frombuffer(message, np.uint8).copy() for message in messages), context)  # type: ignore[misc]


class GrpcFullWorker(GrpcWorker):
    """Messages of many samples, made before the clock starts."""

    def __init__(self, address: str, payload: Payload) -> None:
        bytes(KEPT_BYTES)
        super().__init__(address, payload)
        self._payload = payload
        self._per_message = max(1, FULL_BYTES // payload.sample_bytes)

    def messages(self, samples: list[Tree]) -> Iterator[bytes]:
        pack, cycle = self._pack, itertools.cycle(samples)
        made = [b"".join(pack(next(cycle)) for _ in range(self._per_message)) for _ in range(2)]
        return itertools.cycle(made)

    def flood(self, samples: list[Tree]) -> NoReturn:
        for _reply in self._call(self.messages(samples)):
            pass
        raise ConnectionError("the learner ended the stream")


class GrpcKeptWorker(GrpcFullWorker):
    """The same put together from the samples as they come, and kept for a while."""

    def messages(self, samples: list[Tree]) -> Iterator[bytes]:
        arrays = itertools.cycle([self._payload.arrays(sample) for sample in samples])
        kept: deque[bytes] = deque(maxlen=max(1, WINDOW_BYTES // FULL_BYTES))
        while True:
            kept.append(b"".join(itertools.chain.from_iterable(itertools.islice(arrays, self._per_message))))
            yield kept[-1]


class GrpcHandedWorker(GrpcKeptWorker):
    """The same with samples that come from a thread of their own, as from a caller of send(): it hands messages to grpcio's thread, which asks for them."""

    def flood(self, samples: list[Tree]) -> NoReturn:
        outbox: queue.Queue[bytes] = queue.Queue(max(1, WINDOW_BYTES // FULL_BYTES))
        self._begin(iter(outbox.get, None))
        messages = self.messages(samples)
        while True:
            outbox.put(next(messages))


class Grpcio(System):
    name = "grpcio"
    can = frozenset({"tcp"})

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        return GrpcLearner(payload, batch_size, connections)

    def worker(self, address: str, payload: Payload) -> Worker:
        return GrpcWorker(address, payload)


class GrpcioBytes(Grpcio):
    """What grpcio can carry at best: nothing is packed, and memory for large messages is kept. A ceiling, not a rival."""

    name = "grpcio-bytes"

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        bytes(KEPT_BYTES)
        return super().learner(payload, batch_size, connections)

    def worker(self, address: str, payload: Payload) -> Worker:
        return GrpcBytesWorker(address, payload)


class GrpcioFull(Grpcio):
    """The most that grpcio can carry of small samples: messages of the best size, made beforehand, which nobody looks at. A ceiling."""

    name = "grpcio-full"

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        bytes(KEPT_BYTES)
        return GrpcFullLearner(payload, batch_size, connections)

    def worker(self, address: str, payload: Payload) -> Worker:
        return GrpcFullWorker(address, payload)


class GrpcioKept(GrpcioFull):
    """The same with the two copies that no library is spared which keeps what is not acknowledged, and hands over arrays of its own."""

    name = "grpcio-kept"

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        bytes(KEPT_BYTES)
        return GrpcKeptLearner(payload, batch_size, connections)

    def worker(self, address: str, payload: Payload) -> Worker:
        return GrpcKeptWorker(address, payload)


class GrpcioHanded(GrpcioKept):
    """The same from a worker whose thread makes samples and leaves sending to grpcio's: what is left for a library with a send()."""

    name = "grpcio-handed"

    def worker(self, address: str, payload: Payload) -> Worker:
        return GrpcHandedWorker(address, payload)

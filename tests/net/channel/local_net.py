"""A network made of socket pairs that can be cut, and both ends of it: what the tests of the channel transport share."""

from __future__ import annotations

import errno
import math
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from echo_core.base.address import Address
from echo_core.base.errors import EchoTimeoutError
from echo_core.base.transport_options import ListenOptions
from echo_core.server.server import Server
from echo_core.spec.spec import Spec
from echo_core.wire.protocol import TO_WORKER, Header, Kind, pack_header, parse_header
from echo_net.channel import Acceptor, Channel, ChannelTransport
from echo_net.channel.connection import ChannelConnection
from echo_net.handshake import ClientHandshake
from echo_testing.processes import until
from echo_testing.samples import Tally, example, stacked

TOKEN = b"a-token-of-the-tests"
SPEC = Spec.from_example(example())


class LocalChannel(Channel):
    """A socket pair's end; it breaks after `budget` bytes, wherever in a frame that is."""

    def __init__(self, sock: socket.socket, budget: float = math.inf) -> None:
        self.sock, self.budget, self.peer = sock, budget, "somebody local"

    def send(self, buffers: Any) -> None:
        for buffer in buffers:
            if len(buffer) > self.budget:
                self.sock.sendall(memoryview(buffer)[: int(self.budget)])
                self.shutdown()
                raise ConnectionResetError("cut")
            self.budget -= len(buffer)
            self.sock.sendall(buffer)

    def recv_into(self, buffer: memoryview) -> int:
        return self.sock.recv_into(buffer)

    def shutdown(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.sock.close()


@dataclass
class Net:
    """What is behind the addresses `local://<path>`.

    Attributes:
        budget: bytes that the next channels of workers live for.
        accepting: what accept() raises, one after another, before it works again.
    """

    listening: dict[str, queue.SimpleQueue[socket.socket | None]] = field(default_factory=dict)
    budget: Iterator[float] = field(default_factory=lambda: iter(()))
    channels: list[LocalChannel] = field(default_factory=list)
    accepting: list[Exception] = field(default_factory=list)
    accepts: int = 0

    def dial(self, path: str) -> socket.socket:
        if path not in self.listening:
            raise ConnectionRefusedError(f"nobody listens at {path}")
        mine, theirs = socket.socketpair()
        self.listening[path].put(theirs)
        return mine

    def cut(self) -> None:
        """Every connection of this moment is lost. A worker may dial again meanwhile; its new connection stays."""
        for channel in list(self.channels):
            channel.shutdown()


net = Net()


class LocalAcceptor(Acceptor):
    def __init__(self, path: str) -> None:
        if path in net.listening:
            raise OSError(errno.EADDRINUSE, f"local://{path} is taken")
        self.address = Address("local", path=path)
        self.queue = net.listening[path] = queue.SimpleQueue()

    def accept(self) -> Channel:
        net.accepts += 1
        if net.accepting:
            raise net.accepting.pop(0)
        if (sock := self.queue.get()) is None:
            raise OSError("shut down")
        return LocalChannel(sock)

    def shutdown(self) -> None:
        net.listening.pop(self.address.path)
        self.queue.put(None)

    def close(self) -> None:
        while not self.queue.empty():
            if (sock := self.queue.get()) is not None:
                sock.close()


@dataclass(frozen=True, kw_only=True)
class LocalOptions(ListenOptions):
    path: str = "learner"


class LocalTransport(ChannelTransport):
    scheme = "local"
    Options = LocalOptions

    @classmethod
    def dial(cls, address: Address, options: Any, timeout: float) -> Channel:
        channel = LocalChannel(net.dial(address.path), next(net.budget, math.inf))
        net.channels.append(channel)
        return channel

    def bind(self) -> Acceptor:
        return LocalAcceptor(self.options.path)


def serve(like: Any = None, batch_size: int = 2, num_buffers: int = 3, client_memory: int | None = None, **options: Any) -> Server:
    like = example() if like is None else like
    transport = LocalTransport(**options)
    return Server(like, batch_size, transport, num_buffers=num_buffers, token=TOKEN, client_memory=client_memory).start()


def connect(spec: Spec = SPEC, path: str = "learner", **options: Any) -> ChannelConnection:
    options = {"token": TOKEN, "timeout": 10.0, "name": "w"} | options
    connection = LocalTransport.connect(Address("local", path=path), spec, **options)
    assert isinstance(connection, ChannelConnection)
    return connection


class Consumer:
    """Takes batches on a thread until told to stop."""

    def __init__(self, server: Server) -> None:
        self.tally = Tally()
        self.server = server
        self.stopping = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.stopping:
            with suppress(EchoTimeoutError):
                batch = self.server.sample(0.05)
                if batch is None:
                    return
                self.tally.add(batch.batch)

    def check(self, expected: dict[int, int]) -> None:
        total = sum(expected.values())
        until(lambda: self.tally.count >= total, f"{total} samples")
        self.stopping = True
        self.thread.join()
        self.tally.check(expected)


class RawWorker:
    """Speaks the wire format by hand, to say what no connection would."""

    def __init__(self, client_id: str = "a" * 32, base: int = 0, spec: Spec = SPEC, session: str = "") -> None:
        """A session of its own unless `session` is given: samples are numbered within one."""
        self.sock = net.dial("learner")
        self.sock.settimeout(10)
        handshake = ClientHandshake(spec, TOKEN, client_id, base, name="raw", session=session or client_id)
        self.sock.sendall(handshake.start())
        while not handshake.done:
            self.sock.sendall(handshake.receive(self.sock.recv(65536)))
        self.data = handshake.leftover
        self.resume = self.read(Kind.ACK).seq

    def read(self, kind: Kind) -> Header:
        header, _ = self.read_payload(kind)
        return header

    def read_payload(self, kind: Kind) -> tuple[Header, bytes]:
        header = parse_header(self.exactly(24), SPEC.sample_bytes, TO_WORKER)
        assert header.kind is kind, header
        return header, self.exactly(header.length)

    def exactly(self, n: int) -> bytes:
        while len(self.data) < n:
            more = self.sock.recv(65536)
            if not more:
                raise EOFError
            self.data += more
        data, self.data = self.data[:n], self.data[n:]
        return data

    def send(self, first: int, count: int, maker: int = 0, flags: int = 0) -> None:
        _, payload = SPEC.flattener.batch_tobytes(stacked(maker, first - 1, count))
        self.sock.sendall(pack_header(Kind.DATA, flags=flags, count=count, seq=first, length=len(payload)) + payload)

    def gone(self) -> bool:
        """The learner has hung up on us."""
        try:
            while True:
                self.exactly(1)
        except (EOFError, ConnectionError):
            return True

    def close(self) -> None:
        self.sock.close()


@contextmanager
def raw(**arguments: Any) -> Iterator[RawWorker]:
    worker = RawWorker(**arguments)
    try:
        yield worker
    finally:
        worker.close()

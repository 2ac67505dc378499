"""Many bare workers in one process: sockets that do Echo's handshake with its own code, send samples, answer pings and connect again.

A real `Client` has two threads and 0.1 MB, so that thousands of them do not fit one machine. For the server, these are the same.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.processes import allow_open_files

SAMPLES, SAMPLE_BYTES = 64, 4096  # of each worker: 256 KiB
FRAME_SAMPLES = 4
EXAMPLE = {"filling": np.zeros(SAMPLE_BYTES - 8, np.uint8), "number": np.zeros((), np.int32), "worker": np.zeros((), np.int32)}
BUFFER_BYTES = 8 << 10  # in the kernel, at each end (it takes some times as much): most of what a worker sends waits for the server
UNDER_WAY = 512  # attempts to connect at once, of a process: if it begins with thousands, it is too slow to finish any in time, as no worker is
PING_SECONDS = 10.0  # as a client does with the default `silence`


class Worker:
    """One connection, and what it has sent. It is driven by the loop of `Crowd`."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.client, self.session = secrets.token_hex(16), secrets.token_hex(16)
        self.sock: socket.socket | None = None
        self.handshake: Any = None
        self.out, self.heard = bytearray(), bytearray()
        self.next = self.acknowledged = 0  # numbers of samples
        self.connected = False  # the server has said where to go on
        self.times = 0  # that it was connected
        self.attempt_ends = self.dial_at = 0.0
        self.pauses: Iterator[float] = iter(())  # before the next attempts


class Crowd:
    """The workers of one process."""

    def __init__(self, address: str, first: int, count: int) -> None:
        from echo_core.base.address import Address
        from echo_core.security.tokens import find_token
        from echo_core.spec.spec import Spec

        self.endpoint = Address.parse(address).endpoint
        self.spec, self.token = Spec.from_example(EXAMPLE), find_token()
        self.workers = [Worker(index) for index in range(first, first + count)]
        self.target = 0  # samples that each has to send
        self.attempts = 0
        self._selector = selectors.DefaultSelector()
        self._ping_at = time.monotonic() + PING_SECONDS

    def step(self, seconds: float) -> None:
        """Serve all connections for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for key, events in self._selector.select(left):
                self._serve(key.data, events)

    def tick(self) -> None:
        """What is due by the clock: attempts that have ended or begin, and pings."""
        from echo_core.wire.protocol import Kind, frame

        now = time.monotonic()
        under_way = sum(worker.sock is not None and not worker.connected for worker in self.workers)
        for worker in self.workers:
            if worker.sock is None and worker.dial_at <= now:
                if under_way < UNDER_WAY:
                    under_way += 1
                    self._dial(worker, now)
            elif worker.sock is not None and not worker.connected and worker.attempt_ends < now:
                self._lose(worker)
        if now > self._ping_at:
            self._ping_at = now + PING_SECONDS
            for worker in self.workers:
                if worker.connected and not worker.out:
                    worker.out += frame(Kind.PING, seq=1)
                    self._write(worker)

    def send(self, target: int) -> None:
        """Let each worker send until it has sent `target` samples."""
        self.target = target
        for worker in self.workers:
            if worker.connected:
                self._write(worker)

    def done(self, what: str, count: int) -> bool:
        """Whether each worker has been connected so often and is now, or has so many samples acknowledged."""
        if what == "connected":
            return all(worker.connected and worker.times >= count for worker in self.workers)
        return all(worker.acknowledged >= count for worker in self.workers)

    def _dial(self, worker: Worker, now: float) -> None:
        from echo_net.handshake import ClientHandshake
        from echo_net.network.redial_pauses import ATTEMPT_SECONDS

        self.attempts += 1
        worker.attempt_ends = now + ATTEMPT_SECONDS
        worker.handshake = ClientHandshake(self.spec, self.token, worker.client, worker.acknowledged, name=f"worker-{worker.index}", session=worker.session)
        worker.out, worker.heard = bytearray(worker.handshake.start()), bytearray()
        worker.sock = sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        sock.connect_ex(self.endpoint)
        self._selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, worker)

    def _lose(self, worker: Worker) -> None:
        from echo_net.network.redial_pauses import redial_pauses

        assert worker.sock is not None
        if worker.connected or not worker.times:
            worker.pauses = redial_pauses()
        worker.connected = False
        self._selector.unregister(worker.sock)
        worker.sock.close()
        worker.sock = None
        worker.dial_at = time.monotonic() + next(worker.pauses)

    def _serve(self, worker: Worker, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._read(worker)
            if events & selectors.EVENT_WRITE and worker.sock is not None:
                self._write(worker)
        except OSError:
            self._lose(worker)

    def _read(self, worker: Worker) -> None:
        from echo_core.base.errors import EchoError
        from echo_core.wire.protocol import HEADER_BYTES, REPLY, TO_WORKER, Kind, frame, parse_header

        assert worker.sock is not None
        with suppress(BlockingIOError):
            data = worker.sock.recv(1 << 16)
            if not data:
                return self._lose(worker)
            if not worker.handshake.done:
                try:
                    worker.out += worker.handshake.receive(data)
                except EchoError:  # such as "busy" or "shutdown": a client tries again
                    return self._lose(worker)
                data = worker.handshake.leftover if worker.handshake.done else b""
            worker.heard += data
        while len(worker.heard) >= HEADER_BYTES:
            header = parse_header(worker.heard, 0, TO_WORKER)
            if len(worker.heard) < HEADER_BYTES + header.length:
                break
            del worker.heard[: HEADER_BYTES + header.length]
            if header.kind is Kind.ACK:
                worker.acknowledged = max(worker.acknowledged, header.seq)
                if not worker.connected:
                    worker.connected, worker.next = True, header.seq
                    worker.times += 1
            elif header.kind is Kind.PING and not header.flags:
                worker.out += frame(Kind.PING, flags=REPLY, seq=header.seq)
        self._write(worker)

    def _write(self, worker: Worker) -> None:
        assert worker.sock is not None
        while True:
            if not worker.out and worker.connected and worker.next < self.target:
                worker.out += self._frame(worker, min(FRAME_SAMPLES, self.target - worker.next))
            if not worker.out:
                break
            try:
                del worker.out[: worker.sock.send(worker.out)]
            except BlockingIOError:
                break
            except OSError:
                return self._lose(worker)
        self._selector.modify(worker.sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.out else 0), worker)

    def _frame(self, worker: Worker, count: int) -> bytes:
        from echo_core.wire.protocol import Kind, pack_header

        numbers = np.arange(worker.next, worker.next + count, dtype=np.int32)
        filling = np.full((count, SAMPLE_BYTES - 8), worker.index % 251, np.uint8)
        payload = b"".join(leaf.tobytes() for leaf in (filling, numbers, np.full(count, worker.index, np.int32)))  # in the order of the spec
        worker.next += count
        return pack_header(Kind.DATA, count=count, seq=worker.next - count + 1, length=len(payload)) + payload


def crowd(link: Connection, address: str, first: int, count: int) -> None:
    """A process of bare workers. It answers a command once each worker has been connected so many times (`"connected", 2`), or the server has
    acknowledged so many samples of each (`"sent", 64`), with the number of attempts to connect so far. It ends with the link."""
    allow_open_files(count + 100)
    all_of_them = Crowd(address, first, count)
    link.send("ready")
    command: Any = None
    while True:
        if link.poll():
            try:
                command = link.recv()
            except EOFError:
                return
            if command[0] == "sent":
                all_of_them.send(command[1])
        else:
            all_of_them.step(0.1)
        if command is not None or all_of_them.attempts:  # nobody connects before the first command
            all_of_them.tick()
        if command is not None and all_of_them.done(*command):
            link.send(all_of_them.attempts)
            command = None

"""What clients that stop within a message cost a learner's process: its memory is measured from outside."""

from __future__ import annotations

import multiprocessing
import os
import queue
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import grpc
import numpy as np
import pytest

from echo_core import Server
from echo_core.spec.spec import Spec
from echo_core.wire.protocol import Kind, pack_header
from echo_grpc.protobuf import MAX_MESSAGE_BYTES, pack, unpack
from echo_grpc.service import METHOD
from echo_net.handshake import ClientHandshake
from echo_testing.processes import until

TOKEN = "the-token-of-these-tests-long-enough"
EXAMPLE = {"x": np.zeros(4096, np.uint8)}
LIMIT = 64 << 20
FRAME_BYTES = 8 << 20
CLIENTS, ROUNDS = 40, 4
FRAME = pack_header(Kind.DATA, count=FRAME_BYTES // 4096, seq=1, length=FRAME_BYTES), bytes(FRAME_BYTES - 1)

pytestmark = pytest.mark.skipif(os.sysconf("SC_PAGE_SIZE") != 4096, reason="the bounds are for pages of 4 KiB")


def learner(link: Pipe) -> None:
    """Tells its address, then its figures when it is asked."""
    with Server(EXAMPLE, 2, "grpc://127.0.0.1:0", token=TOKEN, client_memory=LIMIT) as server:
        link.send(str(server.address))
        while link.recv() == "?":
            stats = server.stats()
            link.send((stats["transport/grpc/connections_total"], [peer.bytes for peer in server.peers()], stats["clients/held_bytes"]))


class HalfSender:
    """A client that sends a frame without its last byte."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = self._channel.stream_stream(METHOD)(iter(self._outbox.get, None))
        handshake = ClientHandshake(Spec.from_example(EXAMPLE), TOKEN.encode())
        self._send(handshake.start())
        while not handshake.done:
            self._send(handshake.receive(unpack(next(self._call))))
        self._send(*FRAME)

    def _send(self, *buffers: bytes) -> None:
        for message in pack(buffers):
            self._outbox.put(message)

    def close(self) -> None:
        self._outbox.put(None)
        self._call.cancel()
        self._channel.close()


def memory(pid: int, line: str) -> int:
    """A figure of the process, in bytes: VmRSS is what it uses now, VmHWM the most that it has used."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(one.split()[1]) << 10 for one in status.splitlines() if one.startswith(line))


def test_clients_that_stop_within_a_message_cost_no_more_than_the_budget() -> None:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=learner, args=(there,), daemon=True)
    process.start()
    assert process.pid is not None

    def figures() -> tuple[int, list[int], int]:
        here.send("?")
        assert here.poll(60)
        return here.recv()  # type: ignore[no-any-return]

    def all_wait(clients: int) -> bool:
        """Whether each client has been cut off, or its first message has been received."""
        connections, received, _ = figures()
        return connections == clients and all(n > MAX_MESSAGE_BYTES // 2 for n in received)

    try:
        assert here.poll(60)
        target = here.recv().removeprefix("grpc://")
        before = memory(process.pid, "VmRSS")
        for number in range(1, ROUNDS + 1):
            with ExitStack() as stack:
                for _ in range(CLIENTS):
                    stack.callback(HalfSender(target).close)
                until(lambda n=number: all_wait(n * CLIENTS), "all have sent what they can")  # type: ignore[misc]
                assert figures()[2] <= LIMIT
            until(lambda: not figures()[1], "all have left")
        assert memory(process.pid, "VmHWM") - before < 2 * LIMIT + (250 << 20)
        until(lambda: memory(process.pid, "VmRSS") - before < 200 << 20, "what they had sent is given back")
        assert figures()[2] == 0
        here.send("end")
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join(60)

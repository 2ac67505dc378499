"""Learners under strain, as processes: few file descriptors, or hundreds of workers."""

from __future__ import annotations

import logging
import os
import resource
import selectors
import time
from multiprocessing.connection import Connection as Link
from typing import Any

import numpy as np

from echo_core import Server
from echo_core.wire.protocol import HEADER, Kind
from echo_testing.samples import example

from .ledger import Consumer
from .raw import RawWorker

__all__ = ["assert_rests", "crowd", "figures", "keeping_learner"]


def keeping_learner(link: Link, few: int | None = None) -> None:
    """Serve, consume and keep the ledger, with `few` file descriptors left if that is given.

    Says the port; answers "?" with (samples that came by maker, workers, lines of the log), and
    ends well when told anything else.
    """
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("echo").addHandler(Keep())
    # With few descriptors strangers keep theirs for as long as the test takes.
    patience = {} if few is None else {"handshake_timeout": 60.0}
    with Server(example(), 4, {"type": "tcp", "port": 0, **patience}) as server, Consumer(server) as consumer:
        if few is not None:
            limit = len(os.listdir("/proc/self/fd")) + few
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        link.send(server.port)
        while link.recv() == "?":
            consumer.check()
            link.send((dict(consumer.ledger.count), len(server.peers()), list(lines)))
        link.send(dict(consumer.finish().count))


def crowd(link: Link, port: int, first: int, count: int, filler: int) -> None:
    """Keep `count` connections full of samples until told to stop, each its own worker."""
    workers = [RawWorker(port, filler, name=f"worker {first + i}") for i in range(count)]
    link.send("ready")
    link.recv()
    floods = [_Flood(raw, first + index) for index, raw in enumerate(workers)]
    selector = selectors.DefaultSelector()
    for flood in floods:
        flood.raw.sock.setblocking(False)
        selector.register(flood.raw.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, flood)
    while not link.poll(0):
        for key, events in selector.select(0.1):
            key.data.go_on(events)
    selector.close()
    for raw in workers:
        raw.close()
    link.send("closed")


class _Flood:
    """One connection that is always full, at next to no cost: its frames are made by numpy."""

    AT_ONCE = 256  # frames

    def __init__(self, raw: RawWorker, maker: int) -> None:
        self.raw = raw
        fields = [("kind", "u1"), ("flags", "u1"), ("table", "<u2"), ("count", "<u4")]
        fields += [("seq", "<u8"), ("length", "<u8")]
        payload = [("filler", "u1", (raw.filler,)), ("maker", "<i8"), ("number", "<i8")]
        self.frames = np.zeros(self.AT_ONCE, [*fields, *payload])
        assert self.frames.itemsize == HEADER.size + raw.filler + 16
        self.frames["kind"], self.frames["count"] = Kind.DATA, 1
        self.frames["length"], self.frames["maker"] = raw.filler + 16, maker
        self.sent = 0
        self.left = memoryview(b"")

    def go_on(self, events: int) -> None:
        if events & selectors.EVENT_READ:
            assert self.raw.sock.recv(65536), "the learner hung up"  # acknowledgements
        if not events & selectors.EVENT_WRITE:
            return
        if not self.left:
            numbers = np.arange(self.sent, self.sent + self.AT_ONCE)
            self.frames["number"], self.frames["seq"] = numbers, numbers + 1
            seeds = self.frames["maker"] * 31 + numbers * 7
            self.frames["filler"] = (seeds[:, None] + np.arange(self.raw.filler)).astype(np.uint8)
            self.sent += self.AT_ONCE
            self.left = memoryview(self.frames.tobytes())
        try:
            self.left = self.left[self.raw.sock.send(self.left) :]
        except BlockingIOError:
            pass


def cpu_seconds(pid: int) -> float:
    """Processor time that the threads of a process have had so far."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                total += int(file.read().split()[0])
        except OSError:
            pass  # it ended meanwhile
    return total / 1e9


def cpu_over(pids: list[int], seconds: float) -> list[float]:
    """Processor time of each process during the next `seconds`."""
    before = [cpu_seconds(pid) for pid in pids]
    time.sleep(seconds)
    return [cpu_seconds(pid) - used for pid, used in zip(pids, before)]


def assert_rests(pids: list[int], seconds: float, most: float) -> None:
    """Fail unless each process soon uses less than `most` seconds of processor time in a window of `seconds`.

    What is left to do from before, or a busy machine, may fill some windows. A process that looks for work without a pause fills each of them."""
    for _ in range(9):
        if max(cpu_over(pids, seconds)) < most:
            return
    used = cpu_over(pids, seconds)
    assert max(used) < most, used


def figures(server: Server) -> dict[str, Any]:
    """Samples of each connected worker, by name."""
    return {peer.name: peer.samples for peer in server.peers()}

"""Processes for tests of crashes: a single-threaded process that forks workers on demand, each in some milliseconds."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import struct
import traceback
from multiprocessing.connection import Connection as Pipe
from typing import Any

import echo_shm.connection  # noqa: F401  # once, and not again in every worker
from echo_core import Client, Server
from echo_core.base.errors import EchoError
from echo_core.plugins import discovery
from echo_shm.transport import ShmTransport
from echo_testing.processes import until
from echo_testing.samples import example, sample, stacked

ENTRY = 8  # bytes of the acknowledged count of a maker


def nurse(commands: Pipe, address: str, file: str, filler: int, options: dict[str, Any]) -> None:
    """Fork a worker for each named maker and answer with its pid. Reaps killed workers."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Looked up once and not in every worker: it would take two thirds of the worker's start, and a package that is being installed has no name.
    transport = discovery.transport_class("shm")
    discovery.transport_class = lambda _: transport  # type: ignore[assignment]
    with open(file, "r+b") as handle, mmap.mmap(handle.fileno(), 0) as counts:
        while True:
            try:
                maker = commands.recv()
            except EOFError:
                return
            pid = os.fork()
            if pid == 0:
                try:
                    commands.close()
                    _pour(address, maker, filler, counts, options)
                except BaseException:
                    traceback.print_exc()  # no worker ends by itself
                finally:
                    os._exit(0)
            commands.send(pid)


def _pour(address: str, maker: int, filler: int, counts: mmap.mmap, options: dict[str, Any]) -> None:
    client = Client(address, example(filler), **options)
    number = 0
    while True:
        for _ in range(5):
            client.send(sample(maker, number, filler))
            client.send_batch(stacked(maker, number + 1, 7, filler))
            number += 8
        client.wait()
        struct.pack_into("<Q", counts, ENTRY * maker, number)


def hold_with_a_child(address: str, said: Pipe) -> None:
    """Reserve a slot and fork a child that outlives this process, no matter how that ends; report the child's pid."""
    client = Client(address, example())
    slot = client.reserve()
    child = os.fork()
    if child:
        said.send(child)
    signal.pause()
    del slot


def hold(address: str, slots: int, said: Pipe, asked: Pipe) -> None:
    """Reserve `slots` and write half of each; then, when asked, finish them and report the outcome."""
    client = Client(address, example(), reservations=slots)
    held = [client.reserve() for _ in range(slots)]
    for number, slot in enumerate(held):
        for name, value in sample(7, number).items():
            slot.sample[name][...] = value
    said.send("holding")
    asked.recv()
    outcomes = []
    for number, slot in enumerate(held):
        try:
            slot.commit()
            outcomes.append("committed")
        except EchoError as error:
            outcomes.append(str(error))
            client.send(sample(7, number))
    client.close()
    said.send(outcomes)


def drop(address: str, said: Pipe) -> None:
    """Leave a reserved slot to the garbage collector, which runs in a thread that holds the connection's lock; no call follows."""
    client = Client(address, example())
    gc.disable()
    cycle: list[Any] = [client.reserve()]
    cycle.append(cycle)
    del cycle
    with client._connection.uplink.gate.lock:
        gc.collect()
    said.send("dropped")
    signal.pause()


def learn_and_fork(address: str, mode: str, said: Pipe) -> None:
    """Serve one worker, and fork a child that outlives this process, no matter how that ends; report the child's pid."""
    server = Server(example(), 4, ShmTransport(address, mode=mode)).start()
    said.send("listening")
    until(lambda: server.stats()[f"transport/shm/{mode}_workers"] == 1, "the worker has its memory")
    child = os.fork()
    if child:
        said.send(child)
    signal.pause()

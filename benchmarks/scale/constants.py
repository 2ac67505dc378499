"""Measure the constants of the model: one server and one process of clients, which use Echo as any job does, over TCP on loopback.

Costs are CPU time of the process in question, so that other programs on the machine change little.
"""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import numpy as np
import psutil

from benchmarks.processes import allow_open_files, cpu_seconds
from benchmarks.scale.model import Constants

PATIENCE = 120.0  # seconds
ITEM: dict[str, np.ndarray] = {
    "frame": np.zeros((84, 84, 4), np.uint8),
    "action": np.zeros((), np.int64),
    "reward": np.zeros((), np.float32),
    "done": np.zeros((), np.bool_),
}
ITEM_BYTES = sum(leaf.nbytes for leaf in ITEM.values())
CLIENTS, SUBSCRIBERS = 100, 8
WEIGHTS_BYTES = 16 << 20
BATCH = 256
CAPACITY = 2048


def answer(link: Connection, commands: dict[str, Callable[..., Any]]) -> None:
    """Carry out the commands that come by `link`, and send what each returns, until the other end closes it."""
    while True:
        try:
            name, *arguments = link.recv()
        except EOFError:
            return
        link.send(commands[name](*arguments))


def child(target: Callable[..., None], *arguments: Any) -> None:
    """Run `target`, undisturbed by the Ctrl-C that the whole group of processes gets: the parent ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target(*arguments)


class Remote:
    """A process that carries out commands. `target(link, *arguments)` first sends one message, which is `hello`."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self.link, theirs = multiprocessing.Pipe()
        self.process: SpawnProcess = multiprocessing.get_context("spawn").Process(target=child, args=(target, theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.hello = self.receive()

    def receive(self, seconds: float = PATIENCE) -> Any:
        if not self.link.poll(seconds):
            raise TimeoutError(f"a process of the measurement has not answered for {seconds:g} s")
        try:
            return self.link.recv()
        except EOFError:
            self.process.join(5)
            raise RuntimeError(f"a process of the measurement has ended (exit status {self.process.exitcode})") from None

    def ask(self, *command: Any) -> Any:
        self.link.send(command)
        return self.receive()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def cpu(self) -> float:
        return cpu_seconds(self.pid)

    @property
    def memory(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def end(self) -> None:
        """End the process, by force if it does not end by itself."""
        self.link.close()
        self.process.join(3)
        self.process.kill()
        self.process.join()


def learner(link: Connection) -> None:
    """A server with a replay table of ITEM, which publishes weights when it is told to."""
    from echo_core import Server, Table

    allow_open_files(4 * CLIENTS)
    table = Table("replay", ITEM, sampler="uniform", capacity=CAPACITY)
    weights = {"w": np.ones(WEIGHTS_BYTES // 4, np.float32)}

    def publish() -> int:
        return int(server.publish(weights).version)

    def confirmed(version: int) -> None:
        while sum(peer.weights_version == version for peer in server.peers()) < SUBSCRIBERS:
            time.sleep(0.005)

    with Server(tables=[table], batch_size=1, transport="tcp://127.0.0.1:0") as server:
        link.send(str(server.address))
        answer(link, {"publish": publish, "confirmed": confirmed})


def workers(link: Connection, address: str) -> None:
    """A process of many clients."""
    from echo_core import Client

    allow_open_files(4 * CLIENTS)
    with ExitStack() as stack:
        clients: list[Client] = []
        batch = {name: np.zeros((64, *leaf.shape), leaf.dtype) for name, leaf in ITEM.items()}

        def connect(count: int) -> None:
            clients.extend(stack.enter_context(Client(address, ITEM)) for _ in range(count))

        def subscribe() -> None:
            for client in clients[:SUBSCRIBERS]:
                client.weights(PATIENCE)

        def insert(batches: int) -> None:
            for _ in range(batches):
                clients[0].send_batch(batch)
            clients[0].wait(PATIENCE)

        def draw(size: int, times: int) -> None:
            for _ in range(times):
                clients[0].sample(size, PATIENCE)

        link.send("ready")
        answer(link, {"connect": connect, "subscribe": subscribe, "insert": insert, "draw": draw})


@contextmanager
def processes() -> Iterator[tuple[Remote, Remote]]:
    """A server and its clients, before any of these has connected."""
    with ExitStack() as stack:
        serving = Remote(learner)
        stack.callback(serving.end)
        working = Remote(workers, serving.hello)
        stack.callback(working.end)
        yield serving, working


def idle_cpu(remote: Remote, seconds: float) -> float:
    """CPU seconds of a process in a second of waiting."""
    time.sleep(1.0)  # what is still on its way
    before = remote.cpu
    time.sleep(seconds)
    return (remote.cpu - before) / seconds


def measure(rounds: int = 3, idle_seconds: float = 11.0) -> Constants:
    """Measure this machine: about 40 seconds. Rates are medians of `rounds`."""
    with processes() as (serving, working):

        def cost(remote: Remote, *command: Any) -> float:
            """CPU seconds of the server while `remote` carries out a command."""
            before = serving.cpu
            remote.ask(*command)
            return serving.cpu - before

        def median(remote: Remote, *command: Any) -> float:
            return statistics.median(cost(remote, *command) for _ in range(rounds))

        working.ask("connect", 4)  # what is done only once comes first
        client = psutil.Process(working.pid)
        idle_few = idle_cpu(serving, idle_seconds)
        before = [serving.cpu, working.cpu, serving.memory, working.memory, psutil.Process(serving.pid).num_fds(), client.num_fds(), client.num_threads()]
        working.ask("connect", CLIENTS)
        after = [serving.cpu, working.cpu, serving.memory, working.memory, psutil.Process(serving.pid).num_fds(), client.num_fds(), client.num_threads()]
        each = [(b - a) / CLIENTS for a, b in zip(before, after)]
        idle = max(0.0, idle_cpu(serving, idle_seconds) - idle_few) / CLIENTS
        working.ask("insert", CAPACITY // 64)  # the table is full, and its memory has been touched
        insert = median(working, "insert", 32) / (32 * 64)
        draw = median(working, "draw", BATCH, 20) / (20 * BATCH)
        request = median(working, "draw", 1, 500) / 500
        alone = median(serving, "publish")
        working.ask("subscribe")
        sent = []
        for _ in range(rounds):
            begun = serving.cpu
            serving.ask("confirmed", serving.ask("publish"))
            sent.append(serving.cpu - begun - alone)
        weights = SUBSCRIBERS * WEIGHTS_BYTES / max(statistics.median(sent), 1e-6)
    return Constants(
        handshake_server=each[0],
        handshake_client=each[1],
        memory_server=each[2],
        memory_client=each[3],
        descriptors_server=each[4],
        descriptors_client=each[5],
        threads_client=each[6],
        idle_server=idle,
        weights=weights,
        inserts=1 / insert,
        draws=1 / draw,
        requests=1 / request,
        item_bytes=ITEM_BYTES,
    )

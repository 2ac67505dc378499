"""Makes the servers, clients and processes of a contract test, and ends them with the test."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar, Protocol

from echo_core.base.address import Address
from echo_core.base.errors import EchoError, EchoTimeoutError
from echo_core.client.client import Client
from echo_core.server.server import Server
from echo_core.wire.transport import Transport

from . import workers
from .ports import hold
from .processes import LONG, SLOWER
from .samples import Tally, example

__all__ = ["PATIENCE", "Rig", "drain", "hear", "sever_sockets"]

PATIENCE = LONG * SLOWER  # seconds after which any step of these tests counts as hanging

# A prepared server has imported what a process needs, and forks it in a few milliseconds. A new process would need a third of a second of
# processor time for its imports. The server has no threads of ours and has made no connections, so its children are as good as new processes.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["pytest", workers.__name__])
_names = itertools.count(1)


class Contract(Protocol):
    """The parts of a `TransportContract` that a rig uses."""

    connect_options: ClassVar[dict[str, Any]]
    scratch: Path

    def transport(self, **options: Any) -> Transport: ...
    def listen_options(self, **options: Any) -> dict[str, Any]: ...
    def sever(self, server: Server, client: Client, reset: bool) -> None: ...


class Rig:
    """Makes the objects that a test needs, over the transport under test, and ends all of them afterwards."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        forkserver.ensure_running()  # before a test looks which descriptors are open
        self._servers: list[Server] = []
        self._clients: list[Client] = []
        self._processes: list[BaseProcess] = []
        self._held: list[socket.socket] = []

    def server(
        self,
        tree: Any = None,
        batch_size: int = 8,
        num_buffers: int = 4,
        at: Address | None = None,
        listen: dict[str, Any] | None = None,
        **options: Any,
    ) -> Server:
        """A started learner. `at` is an address that was used before; `listen` are the transport's options."""
        transport = self.contract.transport(**(listen or {}))
        if at is not None:
            transport = type(transport).at(at, **self.contract.listen_options(**(listen or {})))
        if "tables" in options:  # they have examples of their own
            server = Server(None, batch_size, transport, **options)
        else:
            server = Server(example() if tree is None else tree, batch_size, transport, num_buffers=num_buffers, **options)
        self._servers.append(server)
        return server.start()

    def place(self) -> Address:
        """An address at which one learner after another can listen, in this process or in others. No other program gets its port meanwhile."""
        end = time.monotonic() + PATIENCE
        while True:
            server = self.server()
            where = server.address
            server.close()
            if where.port is None:
                return where
            try:
                self._held.append(hold(str(where.host), where.port))
                return where
            except OSError:  # another program was faster
                if time.monotonic() > end:
                    raise

    def client(self, to: Server | Address | str, tree: Any = None, **options: Any) -> Client:
        """A worker in this process. Its waits end after `PATIENCE` seconds."""
        address = to.address if isinstance(to, Server) else to
        options = {"timeout": PATIENCE, "name": f"client-{next(_names)}", **options}
        tree = example() if tree is None else tree
        client = Client(address, tree, **self.contract.connect_options, **options)
        self._clients.append(client)
        return client

    def source(self, of: Server | Address) -> Address:
        """The address by which another server takes the weights of this one, with the options that a connection needs."""
        address = of.address if isinstance(of, Server) else of
        options = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in self.contract.connect_options.items()}
        return replace(address, options=address.options | options)

    def hasty(self, to: Server, timeout: float, **options: Any) -> Client:
        """A client with a short default timeout. On a busy machine, connecting may take longer than that timeout."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self.client(to, timeout=timeout, **options)
            except EchoTimeoutError:
                if time.monotonic() > end:
                    raise

    def spawn(self, target: Callable[..., None], *arguments: Any) -> BaseProcess:
        """Run `target`, a function of an importable module, in a new process."""
        process = _context.Process(target=workers.run, args=(workers.Environment(), target, *arguments), daemon=True)
        self._processes.append(process)
        process.start()
        return process

    @staticmethod
    def pause(seconds: float) -> None:
        """Let time pass in which nothing may happen."""
        time.sleep(seconds)

    @staticmethod
    def pipe() -> tuple[Pipe, Pipe]:
        """The (read, write) ends of a pipe on which a process can report."""
        return _context.Pipe(duplex=False)

    def end(self) -> None:
        """Close everything without waiting, because the test itself has waited for everything that it checks."""
        for process in self._processes:
            process.kill()
            process.join()
            process.close()
        for client in self._clients:
            with suppress(EchoError):
                client.close(timeout=0)
        for server in self._servers:
            server.close(timeout=1)
        for held in self._held:
            held.close()
        for kept in (self._servers, self._clients, self._processes, self._held):
            kept.clear()  # their memory goes now; pytest keeps this object until all fixtures of the test have ended


def hear(pipe: Pipe) -> Any:
    """The next report of a process; fails if none arrives in time."""
    assert pipe.poll(PATIENCE), "the other process reported nothing"
    return pipe.recv()


def drain(server: Server, count: int, tally: Tally | None = None) -> Tally:
    """Take batches until `tally` (a new one by default) has seen `count` samples."""
    tally = Tally() if tally is None else tally
    while tally.count < count:
        one = server.sample(timeout=PATIENCE)
        assert one is not None, "the server is closed"
        tally.add(one.batch)
        del one
    assert tally.count == count
    return tally


def sever_sockets(address: Address, reset: bool = False) -> int:
    """Cut every connection of this process from or to `address`, as a failing network would. With
    `reset`, data under way is discarded too. Returns how many ends were cut."""
    # Find all of them first: once one end is cut, its client connects again, and the new link must stay.
    ends = [twin for name in os.listdir("/proc/self/fd") if (twin := _connected(name, address))]
    for twin in ends:
        with twin, suppress(OSError):  # it was closed meanwhile
            if reset and twin.family != socket.AF_UNIX:
                _abort(twin)
            else:
                twin.shutdown(socket.SHUT_RDWR)
    return len(ends)


def _connected(name: str, address: Address) -> socket.socket | None:
    """A duplicate of this process's descriptor `name`, if it is a socket connected from or to `address`."""
    try:
        if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
            return None
        twin = socket.socket(fileno=os.dup(int(name)))
    except OSError:  # it was closed meanwhile
        return None
    with suppress(OSError):  # it is not connected
        ends = twin.getsockname(), twin.getpeername()
        if address.port in (end[1] for end in ends) if twin.family in (socket.AF_INET, socket.AF_INET6) else address.path and address.path in ends:
            return twin
    twin.close()
    return None


def _abort(connected: socket.socket) -> None:
    """Abort a connection: the peer gets a reset, and data in the buffers never arrives."""
    import ctypes

    unspecified = ctypes.create_string_buffer(16)  # struct sockaddr with sa_family AF_UNSPEC
    ctypes.CDLL(None, use_errno=True).connect(connected.fileno(), unspecified, 16)

"""A cluster on one machine, for tests and for laptops: shards are processes, which can be killed, paused and started again."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo_core import EchoError, EchoTimeoutError

from .members import find_members

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from echo_core import Address, Table

    from .members import Member

__all__ = ["LocalCluster"]

START_SECONDS = 120.0
ORPHAN_SECONDS = 2.0
ENDING_SECONDS = 5.0  # in which a shard that was told to end from outside, by a signal or a learner, has usually ended


class LocalCluster:
    """Starts `n` shards, each with the same tables, as processes of this machine. Use it in a `with` block; it also ends with the program.

    Args:
        n: shards.
        tables: of each shard; they must be picklable.
        checkpoint_every: seconds between two checkpoints; None writes none, so a shard that is started again is empty.
        transports: addresses at which each shard listens. TCP ports stay the same when a shard is started again.
        shared_memory: whether each shard listens at an address of shared memory, too.
        weights_from: the learner's address of weights.
        token: of all shards and clients; None makes one.
        checkpoints: the folder of the checkpoints, which stays; None makes one that ends with the cluster.
        server: other arguments of each shard's `Server`.

    Attributes:
        token: give it to clients and learners.
        members: give it to clients and learners.
    """

    def __init__(
        self,
        n: int,
        tables: Sequence[Table],
        *,
        checkpoint_every: float | None = None,
        transports: Sequence[str] = ("tcp://127.0.0.1:0",),
        shared_memory: bool = True,
        weights_from: str | Address | None = None,
        token: str | bytes | None = None,
        checkpoints: str | os.PathLike[str] | None = None,
        server: Mapping[str, Any] | None = None,
    ) -> None:
        self.token: str | bytes = secrets.token_hex(16) if token is None else token
        self.folder = Path(tempfile.mkdtemp(prefix="echo-cluster-"))
        self.members = f"file://{self.folder / 'shards'}"
        self._find = find_members(self.members)
        self._context = multiprocessing.get_context("spawn")
        options = {**(server or {}), **({} if weights_from is None else {"weights_from": str(weights_from)})}
        self._arguments = (tuple(tables), checkpoint_every, os.fspath(self.folder if checkpoints is None else checkpoints), options)
        local = [f"shm://echo-cluster-{secrets.token_hex(4)}"] if shared_memory else []
        self._transports = [[*transports, *(f"{one}-{number}" for one in local)] for number in range(n)]
        self.processes: list[BaseProcess] = []
        # At the exit of the program, multiprocessing waits for processes that would never end; it calls this before. A forked child does not.
        self._at_exit = Finalize(None, self.close, exitpriority=1)
        try:
            for number in range(n):
                self.processes.append(self._start(number))
            for number in range(n):
                self.wait(number)
        except BaseException:
            self.close()
            raise

    def _start(self, number: int) -> BaseProcess:
        arguments = (os.fspath(self.folder), number, self._transports[number], self.token, *self._arguments)
        process = self._context.Process(target=_shard, args=arguments, name=f"shard-{number}")
        process.start()
        return process

    def _file(self, number: int) -> Path:
        return self.folder / "shards" / f"shard-{number}"

    def wait(self, number: int, timeout: float = START_SECONDS) -> Member:
        """Wait until a shard serves, and return where. Raises EchoTimeoutError, and EchoError if its process has ended."""
        ends = time.monotonic() + timeout
        while True:
            found = {member.name: member for member in self._find()}
            if (member := found.get(f"shard-{number}")) is not None:
                self._transports[number] = [str(address) for address in member.addresses]  # it keeps its port
                return member
            if not self.processes[number].is_alive():
                raise EchoError(f"shard {number} has ended with exit code {self.processes[number].exitcode}; its messages say why")
            if time.monotonic() > ends:
                raise EchoTimeoutError(f"shard {number} does not serve after {timeout:g} s")
            time.sleep(0.02)

    def kill(self, number: int) -> None:
        """SIGKILL: what was acknowledged since the last checkpoint is lost."""
        self._file(number).unlink(missing_ok=True)  # nobody else does it for a killed process, and `wait` would find the old file
        self.processes[number].kill()
        self.processes[number].join()

    def restart(self, number: int, wait: bool = True) -> None:
        """Start a shard that has ended, at its old addresses and with its last checkpoint. Raises EchoError if it runs and does not end by itself."""
        self.processes[number].join(ENDING_SECONDS)
        if self.processes[number].is_alive():
            raise EchoError(f"shard {number} runs; end it by drain({number}) or kill({number}) before it is started again")
        self._file(number).unlink(missing_ok=True)  # that of one that was killed from outside
        self.processes[number] = self._start(number)
        if wait:
            self.wait(number)

    def pause(self, number: int) -> None:
        """SIGSTOP: the shard stands still, and its connections stay."""
        self._signal(number, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """SIGCONT."""
        self._signal(number, signal.SIGCONT)

    def drain(self, number: int, timeout: float = 30.0) -> None:
        """SIGTERM, and wait for the end: workers move, a checkpoint is written. Raises EchoTimeoutError."""
        self._signal(number, signal.SIGTERM)
        self.processes[number].join(timeout)
        if self.processes[number].is_alive():
            raise EchoTimeoutError(f"shard {number} was not drained within {timeout:g} s")

    def _signal(self, number: int, what: int) -> None:
        pid = self.processes[number].pid
        if pid is None or not self.processes[number].is_alive():
            raise EchoError(f"shard {number} does not run; start it by restart({number})")
        os.kill(pid, what)

    def close(self) -> None:
        """Kill all shards, and remove their files. Idempotent."""
        for process in self.processes:
            process.kill()
            process.join()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._at_exit.cancel()  # not before: Ctrl-C may interrupt this

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shard(
    folder: str, number: int, transports: list[str], token: str | bytes, tables: Any, every: float | None, checkpoints: str, options: dict[str, Any]
) -> None:
    """The process of one shard."""
    from echo_core import Server

    from .serving import serve_shard

    threading.Thread(target=_end_with_parent, name="echo-cluster-parent", daemon=True).start()
    server = Server(tables=tables, batch_size=1, transport=transports, token=token, **options)
    place = None if every is None else os.path.join(checkpoints, f"checkpoint-{number}")
    serve_shard(server, folder=os.path.join(folder, "shards"), number=number, checkpoint=place, checkpoint_every=every or 30.0)


def _end_with_parent() -> None:
    """Drain this shard if the process that has started it is killed. Workers that it has started leave at the same time, and send what they have."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        time.sleep(ORPHAN_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

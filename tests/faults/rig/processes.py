"""Processes that a test starts, talks to over a pipe, stops and kills."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection as Link
from typing import Any

from echo_testing.processes import stop
from echo_testing.workers import Environment

__all__ = ["Child", "Children"]

# Workers come and go by the dozen here. A server that has imported what they need forks each of
# them off in a few milliseconds; it has no threads of ours and no sockets, so that they are as
# good as freshly started. Starting a process anew is tested in test_sharing.py.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["echo_core.client.client", "echo_core.server.server", "echo_tcp.transport", "rig.workers"]
)


class Child:
    """A process that runs `target(link, *arguments)`; `link` is its end of a pipe.

    Its messages arrive here in order. An error in it is raised here by the next `hear`.
    """

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self.link, theirs = _context.Pipe()
        self.process = _context.Process(
            target=_run,
            args=(Environment(), list(sys.path), theirs, target, arguments),
            daemon=True,
        )
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def exitcode(self) -> int | None:
        return self.process.exitcode

    def tell(self, what: Any) -> None:
        self.link.send(what)

    def hear(self, within: float = 60.0) -> Any:
        """What it says next; fails when it says nothing, dies, or has failed itself."""
        assert self.link.poll(within), f"process {self.pid} said nothing within {within:g} s"
        try:
            said = self.link.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(5)
            raise AssertionError(f"process {self.pid} ended with {self.exitcode}") from None
        if isinstance(said, _Failure):
            raise AssertionError(f"in process {self.pid}:\n{said.text}")
        return said

    def ask(self, what: Any, within: float = 60.0) -> Any:
        self.tell(what)
        return self.hear(within)

    def kill(self) -> None:
        """kill -9, and wait until it is gone. One that is frozen runs nothing before it ends."""
        self.process.kill()
        self.process.join(20)
        assert not self.process.is_alive()

    def freeze(self) -> None:
        """SIGSTOP, and wait until no thread of it runs any more."""
        stop(self.pid)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self, within: float = 60.0) -> None:
        """Wait for its end; fails unless it ends by itself and well."""
        self.process.join(within)
        assert not self.process.is_alive(), f"process {self.pid} has not ended within {within:g} s"
        while self.link.poll():
            try:
                self.hear()
            except AssertionError:
                if self.exitcode:
                    raise
                break
        assert self.exitcode == 0, f"process {self.pid} ended with {self.exitcode}"

    def forget(self) -> None:
        """Kill it if it still runs, and give back what it took here."""
        if self.link.closed:
            return
        if self.process.is_alive():
            self.kill()
        self.process.join(5)
        self.process.close()
        self.link.close()


class Children:
    """All processes of one test. Leaving the block kills those that still run."""

    def __init__(self) -> None:
        self._all: list[Child] = []

    def start(self, target: Callable[..., None], *arguments: Any) -> Child:
        self._all.append(Child(target, *arguments))
        return self._all[-1]

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._all:
            child.forget()


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


def _run(
    environment: object,
    path: list[str],
    link: Link,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    sys.path[:] = path
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        target(link, *arguments)
    except BaseException:
        link.send(_Failure(traceback.format_exc()))
        raise SystemExit(1) from None

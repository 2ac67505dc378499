"""Actor processes: started, and started again when they die, within a budget. On this machine, or where `[cluster]` of a configuration says."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from echo_core import EchoError
from echo_core.config.launching import launch

__all__ = ["Actors", "Fleet", "start_actors"]

_log = logging.getLogger("echo.rl")
_LOOK = 0.2  # seconds between two looks at the processes


class Actors(Protocol):
    """Actors that were started. The end of a `with` block ends them."""

    def check(self) -> None:
        """Raise EchoError if no more are started, because too many have died."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...


def start_actors(command: Sequence[str], n: int | None = None, *, config: Any = None, token: Any = None, name: str = "actors") -> Actors:
    """Start actors: with a configuration, where its `[cluster]` says, such as on Ray; without one, as a `Fleet` on this machine.

    Args:
        command: the program and its arguments. ``"{index}"`` in an argument becomes the number of the actor. With a configuration, ``"{python}"`` becomes
            the interpreter of the machine that runs it. The address of the server must be one that these machines reach.
        n: how many; None takes ``[cluster] workers.min``, and 1 without a configuration.
        config: a configuration, or what ``echo_core.config.config.load`` reads.
        token: the secret of the server; actors find it in ECHO_TOKEN. None is what this process would show. Without a
            configuration, actors inherit this process's environment.
        name: of the actors, in messages.

    Raises ConfigError, and what ``echo_core.config.launching.launch`` raises.
    """
    if config is None:
        return Fleet([part.replace("{python}", sys.executable) for part in command], 1 if n is None else n)
    return launch(config, list(command), shards=0, workers=n, token=token, name=name)


class Fleet:
    """Keeps ``n`` processes of one command alive until ``close``.

    A process that ends by itself with the exit code 0 is done. One that dies otherwise is started again, unless more than ``restarts`` have died within the
    last ``within`` seconds: then the fleet gives up, and ``check`` raises. With a fault that every actor has, a fleet without such a budget would start
    processes for ever.

    Args:
        command: the program and its arguments. ``"{index}"`` in an argument becomes the number of the process, 0 to n - 1. Its standard input is a pipe
            that ends when this process does.
        n: how many processes.
        restarts: how many may be started again within ``within`` seconds.
        env: the environment of the processes; None takes this process's.
    """

    def __init__(self, command: Sequence[str], n: int, *, restarts: int = 5, within: float = 600.0, env: dict[str, str] | None = None) -> None:
        self._command, self._env, self._restarts, self._within = list(command), env, restarts, within
        self._lock = threading.Lock()
        self._deaths: deque[float] = deque()
        self._fault: str | None = None
        self._closing = threading.Event()
        self._running = {index: self._start(index) for index in range(n)}
        self._watching = threading.Thread(target=self._watch, name="echo-rl-fleet", daemon=True)
        self._watching.start()

    @property
    def pids(self) -> list[int]:
        """The processes that are running."""
        with self._lock:
            return [process.pid for process in self._running.values()]

    @property
    def restarted(self) -> int:
        """How many processes were started again within the last ``within`` seconds."""
        with self._lock:
            return len(self._deaths)

    def check(self) -> None:
        """Raise EchoError if the fleet has given up."""
        if self._fault is not None:
            raise EchoError(self._fault)

    def close(self, timeout: float = 10.0) -> None:
        """Let the processes end: wait for ``timeout`` seconds, then ask them by SIGTERM, and after as long again kill them. Idempotent."""
        self._closing.set()
        self._watching.join()
        for end in (None, subprocess.Popen.terminate, subprocess.Popen.kill):
            for process in self._running.values():
                if end is not None and process.poll() is None:
                    end(process)
            ends = time.monotonic() + timeout
            for process in self._running.values():
                try:
                    process.wait(max(0.0, ends - time.monotonic()))
                except subprocess.TimeoutExpired:
                    break
            else:
                break
        for process in self._running.values():
            if process.stdin is not None:
                process.stdin.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, index: int) -> subprocess.Popen[bytes]:
        # The pipe ends with this process, however it ends, and so the actors know. Ctrl-C reaches this process only, which then ends the job.
        return subprocess.Popen([part.replace("{index}", str(index)) for part in self._command], env=self._env, stdin=subprocess.PIPE, start_new_session=True)

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK):
            with self._lock:
                for index, process in list(self._running.items()):
                    if (code := process.poll()) is not None:
                        del self._running[index]
                        if process.stdin is not None:
                            process.stdin.close()
                        if code != 0 and self._fault is None:
                            self._died(index, code)

    def _died(self, index: int, code: int) -> None:
        now = time.monotonic()
        while self._deaths and now - self._deaths[0] > self._within:
            self._deaths.popleft()
        self._deaths.append(now)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        if len(self._deaths) > self._restarts:
            self._fault = (
                f"{len(self._deaths)} actors have died within {self._within:.0f} s, the last one {how}; no more are started. Their own output says why. "
                f"The command is: {' '.join(self._command)}"
            )
            _log.error("%s", self._fault)
            return
        _log.warning("actor %d has ended %s; it is started again (%d of at most %d times)", index, how, len(self._deaths), self._restarts)
        self._running[index] = self._start(index)

"""Several learners: processes that share each batch. All of them have the same weights and the same optimiser, and take the same steps.

The process of the trainer is learner 0, and starts the others. A batch reaches them through memory that only these processes have, each computes the
gradient of its share, and gloo adds up the gradients over loopback. The death of one learner ends the run, with an error that names it.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from echo_core import ConfigError, EchoError, EchoTimeoutError
from echo_rl.core.process_group import ALONE, ProcessGroup
from echo_rl.rollouts.actor_process import end_with_the_parent

__all__ = ["Learner", "Learners", "main"]

_log = logging.getLogger("echo.rl")
_START = 300.0  # seconds within which a learner has to start: a busy machine takes long to import PyTorch
_GRACE = 5.0  # seconds that a learner has to say why it has left the others
_WORDS = ("", "ready", "done")  # what a learner says while all is well


class Learner(Protocol):
    """A ``TokenLearner`` or a ``PPOLearner``. It can be pickled."""

    group: ProcessGroup

    def update(self, batch: Any) -> Any:
        """Take the gradient steps of a batch, and return their figures."""


class _Lost(EchoError):
    """Another learner has gone, or does not answer."""


class _Gloo:
    """The process group of ``size`` learners, by gloo on loopback. ``close`` it, and close ``store`` only then.

    Attributes:
        seconds: for how long this learner has waited for the others. waits: whether it waits for them now.
    """

    def __init__(self, store: int, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.seconds, self.waits = rank, size, 0.0, False
        within = timedelta(seconds=timeout)
        # The learners find each other by a file without a name: no other process can write to it, and nothing is left of it.
        file = dist.FileStore(_path(store), size)  # type: ignore[attr-defined]
        file.set_timeout(within)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout, options._devices = within, [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        try:
            self._group: Any = dist.ProcessGroupGloo(file, rank, size, options)
        except RuntimeError as error:
            raise _Lost(str(error)) from error

    def all_reduce(self, tensor: Tensor) -> None:
        began, self.waits = time.monotonic(), True
        here = tensor.detach().cpu()
        try:
            self._group.allreduce([here]).wait()
        except RuntimeError as error:
            raise _Lost(str(error)) from error
        finally:
            self.waits, self.seconds = False, self.seconds + time.monotonic() - began
        if tensor.device.type != "cpu":
            tensor.copy_(here)

    def close(self) -> None:
        self._group = None


class _Process:
    """Another learner, as learner 0 sees it."""

    def __init__(self, rank: int, size: int, memory: int, store: int, timeout: float) -> None:
        self.rank = rank
        self._said = ""
        self._connection, theirs = Pipe()
        threads = str(torch.get_num_threads())
        arguments = [*(str(value) for value in (rank, size, theirs.fileno(), memory, store)), threads, str(timeout)]
        # Its standard input ends with this process, however it ends. Ctrl-C reaches this process only.
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "echo_rl.training.learners", *arguments],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            stdin=subprocess.PIPE,
            pass_fds=[theirs.fileno(), memory, store],
            start_new_session=True,
        )
        theirs.close()

    def tell(self, word: str) -> None:
        """Raises _Lost if the process has ended."""
        try:
            self._connection.send(word)
        except OSError as error:
            raise _Lost(f"{self} has ended") from error

    def hear(self, word: str, until: float) -> None:
        """Wait until the process says a word. Raises _Lost if it says something else, ends, or says nothing until then."""
        self._listen(until)
        if self._said != word:
            raise _Lost(f"{self} has not said {word!r}")
        self._said = ""

    def fault(self, until: float) -> str | None:
        """Why it has left the others, in words; "" if it says nothing until then, and None if others have left it."""
        while self._said in _WORDS:
            self._said = ""
            self._listen(until)
        if self._said == "ended":
            code = self.popen.wait(_GRACE)
            return f"{self} has ended {f'by signal {-code}' if code < 0 else f'with exit code {code}'}"
        return None if self._said == "lost" else self._said and f"{self} has failed: {self._said}"

    def _listen(self, until: float) -> None:
        if not self._said and self._connection.poll(max(0.0, until - time.monotonic())):
            try:
                self._said = self._connection.recv()
            except (EOFError, OSError):
                self._said = "ended"

    def close(self) -> None:
        self.popen.kill()  # it has nothing that could be lost
        self.popen.wait()
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        self._connection.close()

    def __str__(self) -> str:
        return f"learner {self.rank} (process {self.popen.pid})"


class Learners:
    """A learner, and those that share its batches.

    Args:
        learner: that of this process. Between ``start`` and ``close``, only ``update`` may change it.
        n: how many learners there are, this one included.
        timeout: after how many seconds without an answer of another learner ``update`` raises. A start may take 300 s.

    Raises ConfigError if there are to be several, and this PyTorch has no gloo.
    """

    def __init__(self, learner: Learner, n: int, timeout: float) -> None:
        if n > 1 and not (dist.is_available() and dist.is_gloo_available()):
            raise ConfigError(f"num_learners={n}: this PyTorch has no gloo, by which learners add up their gradients; install another build, or use 1")
        self._learner, self._n, self._timeout = learner, n, timeout
        self._others: list[_Process] = []
        self._files: list[int] = []
        self._group: _Gloo | None = None
        self._began = time.monotonic()

    @property
    def pids(self) -> list[int]:
        """The processes of the other learners."""
        return [other.popen.pid for other in self._others]

    def start(self) -> None:
        """Start the other learners, with copies of this one.

        Raises EchoTimeoutError or EchoError if one of them does not start, and ConfigError if this one cannot be copied. ``close`` ends those that run.
        """
        if self._n == 1:
            return
        self._files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("echo-rl-batch", "echo-rl-learners")]
        memory, store = self._files
        for rank in range(1, self._n):
            self._others.append(_Process(rank, self._n, memory, store, self._timeout))
        try:
            self._hear("ready", _START)
            self._tell("take", self._learner)
            self._hear("done", _START)
            self._tell("join", None)
            self._group = _Gloo(store, 0, self._n, self._timeout)
            self._hear("done", self._timeout)
        except _Lost as error:
            raise self._fault(error) from error
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise ConfigError(f"num_learners={self._n}: a part of the learner cannot be copied to the other learners: {error}; use 1") from error
        self._learner.group = self._group
        self._began = time.monotonic()

    def update(self, batch: Any) -> Any:
        """The learner's ``update``, by all of them.

        Raises EchoTimeoutError or EchoError, which name the learner that is missing, and what the learner's ``update`` raises. No update follows then.
        """
        if not self._others:
            return self._learner.update(batch)
        try:
            self._tell("update", (getattr(self._learner, "version", None), batch))
            figures = self._learner.update(batch)
            self._hear("done", self._timeout)
        except _Lost as error:
            raise self._fault(error) from error
        return figures

    def check(self) -> None:
        """Raise EchoError if another learner has ended."""
        if any(other.popen.poll() is not None for other in self._others):
            raise self._fault(None)

    def stats(self) -> dict[str, float | int | str]:
        """Figures for the live view: how many learners there are, and for which share of the time this one has waited for the others."""
        found: dict[str, float | int | str] = {"learners": self._n}
        if (group := self._group) is not None:
            found["learners_wait_share"] = group.seconds / max(time.monotonic() - self._began, 1e-9)
            if group.waits:
                found["waits"] = "the learner waits for the other learners' shares of the update"
        return found

    def close(self) -> None:
        """End the other learners. Idempotent."""
        self._learner.group = ALONE
        for other in self._others:
            other.close()
        if self._group is not None:
            self._group.close()
        for file in self._files:
            os.close(file)
        self._others, self._files, self._group = [], [], None

    def _tell(self, word: str, value: Any) -> None:
        """Put a value where the others read it, and tell them. They have taken the one before, since they have said that it is done."""
        with open(_path(self._files[0]), "wb") as file:
            pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
        for other in self._others:
            other.tell(word)

    def _hear(self, word: str, timeout: float) -> None:
        ends = time.monotonic() + timeout
        for other in self._others:
            other.hear(word, ends)

    def _fault(self, error: Exception | None) -> EchoError:
        """Which learner is missing, and why."""
        ends = time.monotonic() + _GRACE
        # Those that have ended come first: the others need not be waited for.
        found = {other: other.fault(ends) for other in sorted(self._others, key=lambda other: other.popen.poll() is None)}
        if gone := [text for text in found.values() if text]:
            return EchoError(f"{'; '.join(gone)}. The learners share each update, so training has ended; go on from the last checkpoint")
        if silent := [str(other) for other, text in found.items() if text == ""]:
            who = ", ".join(silent)
            return EchoTimeoutError(f"no answer of {who} within {self._timeout:g} s (patience): the other learners wait for its share of an update")
        return EchoError(f"the learners have lost each other: {error}")


def _path(file: int) -> str:
    """The path by which this process opens one of its open files again, with an offset of its own."""
    return f"/proc/self/fd/{file}"


def main(arguments: Sequence[str]) -> int:
    """Be one of the other learners: take a copy of learner 0, and then each of its batches, until it ends."""
    rank, size, pipe, memory, store, threads = map(int, arguments[:6])
    connection = Connection(pipe)
    end_with_the_parent()
    torch.set_num_threads(threads)
    torch.optim.Adam([torch.zeros(1)])  # with its first optimiser PyTorch imports much of itself, which belongs to the start

    def heard() -> Any:
        connection.recv()
        with open(_path(memory), "rb") as file:
            return pickle.load(file)  # the trainer has written it, and no other process can

    try:
        connection.send("ready")
        learner = heard()
        connection.send("done")
        heard()
        learner.group = _Gloo(store, rank, size, float(arguments[6]))
        connection.send("done")
        while True:
            version, batch = heard()
            if version is not None:
                learner.version = version
            learner.update(batch)
            connection.send("done")
    except (EOFError, ConnectionError):
        return 0  # learner 0 has ended
    except Exception as error:
        if not isinstance(error, _Lost):
            _log.exception("learner %d has failed", rank)
        with suppress(OSError):
            connection.send("lost" if isinstance(error, _Lost) else f"{type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

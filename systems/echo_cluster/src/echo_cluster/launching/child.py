"""The process of one worker: `python -m echo_cluster.launching.child`. Its parent writes to its standard input what it runs.

For a function, the end of the standard input says that the worker has to leave. It also ends if the parent is killed, so no worker outlives it.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import spawn
from typing import Any, NamedTuple

from echo_core import ConfigError, JobEnded

__all__ = ["COMMAND", "Packed", "given_to", "packed"]

COMMAND = [sys.executable, "-m", "echo_cluster.launching.child"]
LEAVE_SECONDS = 5.0  # after which a function that has to leave is interrupted
PR_SET_PDEATHSIG = 1


class Packed(NamedTuple):
    """What a worker runs, ready to be sent to its process: a command, or a pickled function, and the program that defines it."""

    command: list[str] | None
    function: bytes
    main: dict[str, Any]


def packed(worker: Any, dumps: Callable[[Any], bytes] | None = None) -> Packed:
    """Raises ConfigError if a function cannot be pickled.

    Args:
        worker: a function of one argument, or a command.
        dumps: pickles functions; None is pickle's own, for functions that a worker's process can import.
    """
    if isinstance(worker, Sequence) and not isinstance(worker, (str, bytes)) and worker and all(isinstance(part, str) for part in worker):
        return Packed(list(worker), b"", {})
    if not callable(worker):
        raise ConfigError(f"worker must be a function of one argument (a WorkerContext), or a command as a list of texts, not {worker!r:.100}")
    try:
        function = (dumps or pickle.dumps)(worker)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"the worker {worker!r:.100} cannot be sent to another process ({error}); write it as a function of a module") from error
    # As multiprocessing does it, a function of the program itself is found by running the program's file under another name.
    found = spawn.get_preparation_data("worker") if dumps is None else {}
    return Packed(None, function, {key: found[key] for key in ("init_main_from_name", "init_main_from_path") if key in found})


def given_to(worker: Packed, index: int, name: str, members: Any, token: bytes) -> bytes:
    """What the parent writes to the standard input of the worker `index`."""
    made = Packed(worker.command, worker.function, {**worker.main, "sys_path": list(sys.path)})
    return pickle.dumps((os.getpid(), made, index, f"{name}-{index}", members, token))


def _main() -> int:
    parent, worker, index, name, members, token = pickle.load(sys.stdin.buffer)
    os.environ["ECHO_TOKEN"] = token.decode()  # so that anything of Echo in this process finds it
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background of a shell inherits that it is ignored
    if worker.command is not None:
        _become([_replaced(part, index, members) for part in worker.command], parent)
    spawn.prepare(worker.main)
    function = pickle.loads(worker.function)
    from .context import WorkerContext

    context = WorkerContext(index, name, members, token)
    threading.Thread(target=_watch, args=(context,), name="echo-worker-leaves", daemon=True).start()
    try:
        function(context)
    except JobEnded:
        pass
    except KeyboardInterrupt:
        if not context.leaving:
            raise
    return 0


def _watch(context: Any) -> None:
    os.read(0, 1)  # nothing more is ever written here, so this ends with the input; a buffered read would hold up the end of the process
    context.leave()
    threading.Event().wait(LEAVE_SECONDS)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # _thread.interrupt_main would not end a wait of the main thread


def _replaced(part: str, index: int, members: Any) -> str:
    return part.replace("{python}", sys.executable).replace("{index}", str(index)).replace("{members}", str(members or ""))


def _become(command: list[str], parent: int) -> None:
    """Run a command in place of this program. The kernel interrupts it if the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(ctypes.CDLL(None), "prctl"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"the worker's command {command[0]!r} cannot be run: {error.strerror}")


if __name__ == "__main__":
    sys.exit(_main())

"""Whether this process can start the threads that it needs: some libraries hang or abort the process if they cannot start theirs."""

from __future__ import annotations

import os
import threading
import time

from .errors import NoThreadError

__all__ = ["check_spare_threads", "started"]

_REMEDY = (
    "raise the limit of processes and threads (ulimit -u; of a container pids.max, as in `docker run --pids-limit`), or run fewer in it"
)
_ENDING_SECONDS = 0.2  # most time until the kernel no longer counts the threads of the check


def check_spare_threads(count: int, what: str) -> None:
    """Raise NoThreadError unless `count` threads can be started now. `what` needs them.

    They are really started, for a moment, because no file names all limits: of the user, of the container and of the machine.
    """
    over = threading.Event()
    threads: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=over.wait, name="echo-spare", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                raise NoThreadError(f"{what} needs {count} more threads, and only {len(threads)} could be started; {_REMEDY}") from None
            threads.append(thread)
    finally:
        over.set()
        for thread in threads:
            thread.join()
        until = time.monotonic() + _ENDING_SECONDS
        while any(os.path.exists(f"/proc/self/task/{thread.native_id}") for thread in threads) and time.monotonic() < until:
            time.sleep(0.0005)


def started(thread: threading.Thread) -> threading.Thread:
    """Start a thread. Raises NoThreadError if that is not possible."""
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThreadError(f"no further thread could be started ({error}); {_REMEDY}") from error
    return thread

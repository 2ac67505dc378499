"""A worker process: it acts with the newest policy and sends rollouts to the learner, for ever."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection as Link
from typing import Any

from echo_core import Client, EchoError, EchoTimeoutError, JobEnded

from .options import Options
from .rollout import Rollouts, example

REMARK, LAST_WORDS = ".", "!"  # first character of a message to the parent
_PATIENCE = 0.5  # seconds that a wait may take before the worker checks whether it should stop
_FAREWELL = 3.0  # seconds after the request to stop, when the process ends even if something hangs


def main(link: Link, address: str, index: int, generation: int, options: Options) -> None:
    """The whole life of worker ``index``; ``generation`` counts its respawns."""
    live(link, _work, address, index, generation, options)


def live(link: Link, work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(stop, *arguments)`` in a process of a fleet; it returns soon after ``stop`` is set.

    ``link`` is a pipe to the parent. When the parent closes it or dies, the worker ends. The worker
    sends text for people through it, because the terminal belongs to the parent's live view.
    """
    # Ctrl-C reaches every process of the terminal, but the parent decides when workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = threading.Event()
    logging.getLogger("echo").addHandler(_Upwards(link))
    threading.Thread(target=_watch, args=(link, stop), name="watch", daemon=True).start()
    try:
        work(stop, *arguments)
    except JobEnded:
        pass
    except Exception as error:
        if stop.is_set() and isinstance(error, EchoError):
            return  # the learner closed during the handshake
        _say(link, LAST_WORDS, _last_words(error))
        sys.exit(1)


def _work(
    stop: threading.Event, address: str, index: int, generation: int, options: Options
) -> None:
    seed = options.seed * 10_000 + index * 100 + generation  # a respawned worker plays other episodes
    rollouts = Rollouts(options.envs, options.steps, seed)
    # The worker reads the same file as the learner; its [security] and [client] tables apply to workers.
    client = Client.from_config(
        options.config or {}, example(options.steps), address=address, name=f"worker-{index}"
    )
    try:
        held = client.weights(timeout=30.0)
        waited = 0.0
        while not stop.is_set():
            began = time.perf_counter()
            batch = rollouts.collect(held.params["actor"], held.version)
            batch["worker"][:] = index
            batch["waited"][:] = waited
            acted = time.perf_counter()  # where memory is shared, `send_batch` itself waits for space
            client.send_batch(batch)
            # Waiting until all rollouts are in the learner's store keeps the policy lag small. Without it, a
            # fast worker would fill its window with rollouts of an old policy.
            committed(client, stop)
            try:
                held = client.weights(timeout=0, newer_than=held.version)
            except EchoTimeoutError:
                pass  # there is no newer version, so go on with this one
            now = time.perf_counter()
            waited = (now - acted) / (now - began)
    finally:
        try:
            client.close(timeout=0.0 if stop.is_set() else None)
        except EchoError:
            pass  # it was asked to stop; rollouts that the learner no longer takes are not needed


def committed(client: Client, stop: threading.Event) -> None:
    """Wait until all sent rollouts are in the learner's store, or it is time to stop."""
    while not stop.is_set():
        try:
            return client.wait(timeout=_PATIENCE)
        except EchoTimeoutError:
            continue


def _watch(link: Link, stop: threading.Event) -> None:
    try:
        link.recv_bytes()  # the parent never sends anything, so this returns when the parent's end is closed
    except (EOFError, OSError):
        pass
    stop.set()
    time.sleep(_FAREWELL)
    os._exit(1)  # something hangs, but the worker must not outlive the parent


class _Upwards(logging.Handler):
    """Sends Echo's warnings in this process to the parent."""

    def __init__(self, link: Link) -> None:
        super().__init__(logging.WARNING)
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record. `logging` calls it from one thread at a time."""
        _say(self._link, REMARK, record.getMessage())


def _say(link: Link, kind: str, text: str) -> None:
    try:
        link.send_bytes((kind + text).encode())
    except OSError:
        pass  # the parent has ended too


def _last_words(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    name = os.path.basename(where.filename)
    return f"{type(error).__name__}: {error} ({name}:{where.lineno})"

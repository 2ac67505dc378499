"""A worker process: act with the newest policy there is, send rollouts up, for ever."""

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

from echo_core import Client, EchoError, EchoTimeoutError

from .options import Options
from .rollout import Rollouts, example

REMARK, LAST_WORDS = ".", "!"  # first character of what goes up the link
_PATIENCE = 0.5  # seconds a wait may take before the worker looks whether it should stop
_FAREWELL = 3.0  # seconds between being told to stop and being gone, whatever hangs


def main(link: Link, address: str, index: int, generation: int, options: Options) -> None:
    """The whole life of worker ``index``; ``generation`` counts its respawns."""
    live(link, _work, address, index, generation, options)


def live(link: Link, work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(stop, *arguments)`` in a process of a fleet; it returns soon after ``stop`` is set.

    ``link`` is a pipe to the parent. When the parent closes it or dies, the worker ends. Up it
    goes, as text, what people should read: the terminal belongs to the parent's live view.
    """
    # Ctrl-C reaches every process of the terminal; the parent decides when workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = threading.Event()
    logging.getLogger("echo").addHandler(_Upwards(link))
    threading.Thread(target=_watch, args=(link, stop), name="watch", daemon=True).start()
    try:
        work(stop, *arguments)
    except Exception as error:
        if stop.is_set() and isinstance(error, EchoError):
            return  # the learner closed while we were still talking to it
        _say(link, LAST_WORDS, _last_words(error))
        sys.exit(1)


def _work(
    stop: threading.Event, address: str, index: int, generation: int, options: Options
) -> None:
    seed = options.seed * 10_000 + index * 100 + generation  # a respawned worker plays anew
    rollouts = Rollouts(options.envs, options.steps, seed)
    # The same file as the learner's: its [security] and [client] tables hold for workers.
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
            client.send_batch(batch)
            sent = time.perf_counter()
            # Until it all lies in the learner's store: this is what keeps the policy lag small.
            # Without it a fast worker would fill its window with rollouts of an old policy.
            committed(client, stop)
            try:
                held = client.weights(timeout=0, newer_than=held.version)
            except EchoTimeoutError:
                pass  # none newer: go on with this one
            now = time.perf_counter()
            waited = (now - sent) / (now - began)
    finally:
        try:
            client.close(timeout=0.0 if stop.is_set() else None)
        except EchoError:
            pass  # told to stop: what the learner did not take any more is not missed


def committed(client: Client, stop: threading.Event) -> None:
    """Wait until all that was sent lies in the learner's store, or it is time to stop."""
    while not stop.is_set():
        try:
            return client.wait(timeout=_PATIENCE)
        except EchoTimeoutError:
            continue


def _watch(link: Link, stop: threading.Event) -> None:
    try:
        link.recv_bytes()  # nothing is ever sent down: returns when the parent's end is gone
    except (EOFError, OSError):
        pass
    stop.set()
    time.sleep(_FAREWELL)
    os._exit(1)  # something hangs; never outlive the parent


class _Upwards(logging.Handler):
    """Echo's warnings in this process, on their way to the parent."""

    def __init__(self, link: Link) -> None:
        super().__init__(logging.WARNING)
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `logging`, which lets one thread in at a time."""
        _say(self._link, REMARK, record.getMessage())


def _say(link: Link, kind: str, text: str) -> None:
    try:
        link.send_bytes((kind + text).encode())
    except OSError:
        pass  # the parent is gone as well


def _last_words(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    name = os.path.basename(where.filename)
    return f"{type(error).__name__}: {error} ({name}:{where.lineno})"

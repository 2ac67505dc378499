"""Carries out the requests of clients on a few threads, so that one which takes long delays neither new connections nor other clients."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from .._learner import RequestQueue

__all__ = ["Requests"]

_log = logging.getLogger("echo")

CarryOut = Callable[[int, int, int, bytes], None]

MOST_THREADS = 4  # one of them does the work, and the others help if its requests take long (learner/requests.hpp)


class Requests:
    """The threads. Every method may be called from any thread.

    Attributes:
        queue: where the loops put the requests.
    """

    def __init__(self) -> None:
        self.queue = RequestQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._afterwards: dict[tuple[int, int], Callable[[], None]] = {}  # by the client

    def start(self, carry_out: CarryOut) -> None:
        """Start the first thread. Raises RuntimeError if the process can start no more threads.

        Args:
            carry_out: called with each request: the number of the loops that its client belongs to, the client's key, the request's number
                and payload. The requests of one client come one after another, in order.
        """
        self._start_thread(carry_out)

    def after(self, group: int, client: int, job: Callable[[], None]) -> None:
        """Run `job` once no request of this client is left: now, or later by the thread that carries out the last of them. No more requests of
        the client may come."""
        with self._lock:
            if self.queue.has(group, client):
                self._afterwards[group, client] = job
                return
        job()

    def close(self, timeout: float) -> None:
        """Wait until all requests are carried out, for at most `timeout` seconds, and end the threads."""
        until = time.monotonic() + timeout
        self.queue.end()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _start_thread(self, carry_out: CarryOut) -> None:
        # Only the threads refer to `carry_out`: it leads to an object that refers to this one, and a closed listener is freed at once.
        thread = threading.Thread(target=self._run, args=(carry_out,), name="echo-tcp-requests", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run(self, carry_out: CarryOut) -> None:
        while (request := self.queue.take()) is not None:
            group, client, number, payload, alone = request
            if alone and len(self._threads) < MOST_THREADS:
                with self._lock:
                    if len(self._threads) < MOST_THREADS:  # another thread may have been quicker
                        try:
                            self._start_thread(carry_out)
                        except RuntimeError:  # the process has no more threads; the others do the work
                            pass
            try:
                carry_out(group, client, number, payload)
            except Exception:  # the next request belongs to another client
                _log.exception("tcp: while a request of a client was carried out")
            with self._lock:
                job = None if self.queue.done(group, client) else self._afterwards.pop((group, client), None)
            if job is not None:
                job()

"""Keeps a worker connected: dials first, dials again when the link is lost, and checks weights.

Each connection has one daemon thread, which almost always sleeps in the native engine. It refers to the engine
but never to the `TcpConnection`, so a connection that is dropped without `close()` can still be collected.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from echo_core.base.errors import (
    ConnectionClosedError,
    EchoError,
    EchoTimeoutError,
    HandshakeRefused,
)
from echo_core.base.waiting import shown
from echo_net.handshake import ClientHandshake
from echo_net.network.broken_links import MOST, BrokenLinks
from echo_net.network.redial_pauses import ATTEMPT_SECONDS, LEAST_SECONDS, LONGEST_PAUSE, redial_pauses
from echo_net.network.unreachable import advice

from . import _worker
from .dial import Link, dial_echo2
from .echo1 import dial_echo1

if TYPE_CHECKING:
    from echo_core.base.address import Address
    from echo_core.spec.spec import Spec

    from .options import TcpConnectOptions

__all__ = ["Uplink"]

log = logging.getLogger("echo")

ASLEEP = 86400.0  # seconds; the thread has work only when an event comes

SENT_AWAY = "it ended the session: "  # so the engine's reason begins if the learner has ended the link, and not the network (worker/engine_io.hpp)


class Uplink:
    """Dials `address` for `worker`, now and whenever its link is lost.

    Attributes:
        takes_labels: whether samples may have labels, as the learner said in the handshake.
    """

    def __init__(
        self, worker: _worker.Worker, address: Address, spec: Spec, options: TcpConnectOptions
    ) -> None:
        self._worker = worker
        self._address = address
        self._spec = spec
        self._options = options
        self._client_id = options.client_id or secrets.token_hex(16)
        self._session = secrets.token_hex(16)  # see echo_core.wire.identity
        self._incarnation = ""
        self.takes_labels = False
        self._broken_links = BrokenLinks()
        self._pauses, self._linked_at = redial_pauses(), 0.0
        self._over = threading.Event()
        self._dialling: socket.socket | None = None  # is shut down if the connection ends
        self._thread = threading.Thread(target=self._run, name="echo-uplink", daemon=True)

    def start(self) -> None:
        """Connect on the calling thread, then stay connected on a thread of its own.

        Raises EchoTimeoutError with the last reason, and at once every error that another attempt cannot cure.
        """
        start = time.monotonic()
        seconds = self._options.connect_seconds
        link = self._dial_until(start, seconds, self._over.wait)
        if isinstance(link, BaseException):
            raise EchoTimeoutError(
                f"{self._options.role} {self._worker.name!r} could not reach {self._address} within "
                f"{shown(seconds)} s ({link}); {advice(self._address, link, tokens=self._options.protocol != 'echo1')}"
            ) from link
        self._attach(link)
        self._thread.start()
        self._worker.wait_linked(max(0.0, start + seconds - time.monotonic()))

    def stop(self) -> None:
        """Called when the engine is closed: ends an attempt that has begun."""
        self._over.set()
        dialling = self._dialling
        if dialling is not None:
            try:
                dialling.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the attempt has ended by itself
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(1.0)  # only a name lookup takes longer

    def _run(self) -> None:
        try:
            while True:
                events = self._worker.wait_event(ASLEEP)
                if events & _worker.WEIGHTS_HERE:
                    self._worker.accept_weights()
                if events & _worker.OVER:
                    if self._worker.job_ended:
                        log.info("%s %r: the learner at %s has ended the job", self._options.role, self._worker.name, self._address)
                    return
                if events & _worker.LINK_LOST:
                    self._return()
        except BaseException as error:
            self._worker.fail(f"its uplink thread failed: {error!r}")
            raise

    def _return(self) -> None:
        worker, seconds = self._worker, self._options.timeout
        why, broken = worker.why(), worker.broken()
        if not self._options.reconnect or self._options.protocol == "echo1":
            worker.fail(why, broken is not None)  # the original protocol has no resume point
            return
        if broken is not None and self._broken_links.believed(*broken):
            worker.fail(f"{why} (this ended {MOST} connections in a row)", True)
            return
        log.warning("%s %r lost %s: %s", self._options.role, worker.name, self._address, why)
        if time.monotonic() - self._linked_at >= LONGEST_PAUSE:
            self._pauses = redial_pauses()
        elif (broken is not None or why.startswith(SENT_AWAY)) and self._pause(next(self._pauses)):
            return
        try:
            link = self._dial_until(time.monotonic(), seconds, self._pause)
        except EchoError as error:
            worker.fail(f"{why}, and returning failed: {error}")
            return
        if isinstance(link, BaseException):
            worker.fail(f"{why}, and it was not back within {seconds:g} s ({link}); start the learner, and this {self._options.role} again")
            return
        again = "restarted learner" if self._attach(link) else "learner again"
        log.info("%s %r is connected to the %s at %s", self._options.role, worker.name, again, self._address)

    def _attach(self, link: Link) -> bool:
        """Hand a link to the engine. Returns whether the learner has been restarted meanwhile."""
        restarted = self._incarnation not in ("", link.incarnation)
        self._incarnation = link.incarnation
        self._dialling, self._linked_at = None, time.monotonic()
        self._worker.attach(link.socket, link.rest, link.beat, restarted)
        return restarted

    def _pause(self, seconds: float) -> bool:
        events = self._worker.wait_event(seconds)
        if events & _worker.WEIGHTS_HERE:
            self._worker.accept_weights()
        return bool(events & _worker.OVER)

    def _dial_until(
        self, start: float, seconds: float, pause: Callable[[float], bool]
    ) -> Link | Exception:
        """Dial until an attempt succeeds, with pauses in between. Returns a link, or the reason why there was none in time.

        The end of the time cuts the last attempt short. If it failed for that, the reason of the attempt before it is returned, in which the
        learner may have said why it refuses.
        """
        pauses = redial_pauses()
        reason: Exception | None = None
        verdict: EchoError | None = None
        while True:
            left = start + seconds - time.monotonic()
            try:
                return self._dial(max(LEAST_SECONDS, min(ATTEMPT_SECONDS, left)))
            except (EchoTimeoutError, ConnectionClosedError) as error:
                if isinstance(error, HandshakeRefused) and error.code == "ended" and self._incarnation:
                    self._worker.end_job()
                    raise
                if isinstance(error, HandshakeRefused) and error.code not in ("busy", "shutdown", "ended"):
                    verdict = self._judged(error, verdict)
                cut_short = left < ATTEMPT_SECONDS and isinstance(error, TimeoutError)
                reason = reason if reason and cut_short else error
            except EchoError as error:  # the spec, token or protocol differs, so the next attempt would fail in the same way
                reason = verdict = self._judged(error, verdict)
            except OSError as error:
                cut_short = left < ATTEMPT_SECONDS and isinstance(error, TimeoutError)
                reason = reason if reason and cut_short else error
            finally:
                self._dialling = None
            left = start + seconds - time.monotonic()
            if left <= 0 or pause(min(next(pauses), left)):
                return reason

    def _judged(self, error: EchoError, before: EchoError | None) -> EchoError:
        """Raise `error`, a verdict about this worker or its learner.

        A worker that was served before believes a verdict when it comes a second time: one damaged byte can cause a single one.
        """
        if not self._incarnation or type(error) is type(before):
            raise error
        return error

    def _dial(self, seconds: float) -> Link:
        def dialling(sock: socket.socket) -> None:
            self._dialling = sock
            if self._over.is_set():
                raise ConnectionClosedError("closed while connecting")

        options = self._options
        if options.resolve is not None:
            began = time.monotonic()
            self._address = options.resolve(seconds)
            seconds = max(LEAST_SECONDS, seconds - (time.monotonic() - began))
        if options.protocol == "echo1":
            return dial_echo1(
                self._address, self._spec, options.send_buffer, seconds, dialling
            )
        handshake = ClientHandshake(
            self._spec,
            options.token,
            self._client_id,
            self._worker.base(),
            options.role,
            options.name or f"{socket.gethostname()}:{os.getpid()}",
            allow_unauthenticated=options.allow_unauthenticated,
            table=options.table,
            session=self._session,
            silence=options.silence,
            labels=self.takes_labels,
        )
        link = dial_echo2(self._address, handshake, options.silence, options.send_buffer, seconds, dialling)
        self.takes_labels = handshake.peer["labels"]
        return link

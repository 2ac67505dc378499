"""The front at which Evochi's clients join: a server of grpc.aio on a thread of its own, around a coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from echo_core import ConfigError
from echo_core.security.renewed import Renewed
from echo_core.security.tls import TlsListenOptions, server_context

from .metrics import Metrics, served
from .options import FrontOptions
from .service import Service

if TYPE_CHECKING:
    from ..search.coordinator import Coordinator

__all__ = ["EvochiFront"]

_log = logging.getLogger("echo.es")
STATE_BYTES = 256 << 20  # the largest message that a worker may send
CLOSING = 5.0  # seconds after which the streams of workers that do not read are cut: such a worker does not learn why its stream has ended


class EvochiFront:
    """Serves evochi.v1 for a coordinator, from `start` to `close`.

    Args:
        coordinator: the coordinator, which gives the tasks.
        options: the addresses, secrets and limits.

    Attributes:
        port, metrics_port: the ports at which it listens, after `start`.
        metrics: the figures under Evochi's names.
    """

    def __init__(self, coordinator: Coordinator, options: FrontOptions) -> None:
        if coordinator.server_optimizes:
            raise ConfigError("clients of Evochi optimise their state themselves, so evochi= cannot be combined with a strategy of the server")
        self.metrics = Metrics(self._figures)
        self.port = options.port
        self.metrics_port = options.metrics_port
        self._coordinator, self._options = coordinator, options
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._started: Future[None] = Future()
        self._restarting = False

    def _figures(self) -> dict[str, float]:
        counts = self._coordinator.counts
        return {
            "worker_pool_workers_added": counts["joined"],
            "worker_pool_workers_removed": counts["left"],
            "worker_pool_workers": counts["joined"] - counts["left"],
            "epochs_created": self._coordinator.epoch if counts["joined"] else 0,
            "epochs_total_eval_size": counts["evaluations"],
        }

    def start(self) -> EvochiFront:
        """Listen. Raises OSError if a port cannot be bound, and SecurityError if the certificate cannot be used."""
        self._thread = threading.Thread(target=self._run, name="echo-es-evochi", daemon=True)
        self._thread.start()
        self._started.result()
        return self

    def close(self, *, restarting: bool = False) -> None:
        """Remove the workers, and free the ports. Idempotent.

        `restarting`: another server goes on. Workers see what they would see if this one was killed: a lost connection.
        """
        if self._thread is None:
            return
        self._restarting = restarting
        if self._loop is not None and self._ending is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        self._thread = None

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._started.done():
                _log.exception("the front for Evochi's clients has failed")
            else:
                self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        options = self._options
        service = Service(self._coordinator, options, self.metrics)
        half = max(1, int(min(options.worker_timeout * 500, 2**31 - 1)))  # of `worker_timeout`, in milliseconds
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", STATE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                # A worker that evaluates sends nothing. Threads of grpcio answer these pings, whatever the worker's Python does; if its machine is gone or its
                # process is stopped, nobody does, and its stream ends.
                ("grpc.keepalive_time_ms", half),
                ("grpc.keepalive_timeout_ms", half),
                ("grpc.http2.ping_timeout_ms", half),
                ("grpc.http2.max_pings_without_data", 0),  # any number
            ]
        )
        server.add_generic_rpc_handlers((service.handlers(),))
        async with contextlib.AsyncExitStack() as stack:
            self.port = self._bind(server, address_text(options.host, options.port))
            if options.metrics_port is not None:
                endpoint = served(self.metrics.text, options.host, options.metrics_port)
                stack.callback(endpoint.close)
                self.metrics_port = int(endpoint.url.rpartition(":")[2])
            await server.start()
            stack.push_async_callback(server.stop, CLOSING)
            service.begin()
            stack.callback(lambda: service.end(restarting=self._restarting))
            self._started.set_result(None)
            await self._ending.wait()

    def _bind(self, server: grpc.aio.Server, where: str) -> int:
        credentials = _credentials(self._options)
        try:
            return int(server.add_insecure_port(where) if credentials is None else server.add_secure_port(where, credentials))
        except RuntimeError as error:
            raise OSError(f"cannot serve clients of Evochi at {where}: {error}; choose another port, or 0 for any free port") from None


def _credentials(options: FrontOptions) -> grpc.ServerCredentials | None:
    """The certificate of `options`, which is read again when its files were replaced; None without TLS. Raises SecurityError if it cannot be used."""
    certificate, key = options.tls_certificate, options.tls_key
    if certificate is None or key is None:
        return None
    checked = TlsListenOptions(tls_certificate=certificate, tls_key=key)

    def read() -> grpc.ServerCertificateConfiguration:
        server_context(checked, options.host)  # gRPC would only log that a certificate is unusable
        return grpc.ssl_server_certificate_configuration([(key.read_bytes(), certificate.read_bytes())])

    certificates = Renewed(read, checked)
    given = certificates()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        before, given = given, certificates()
        return None if given is before else given  # None: gRPC goes on with what it has

    return grpc.dynamic_ssl_server_credentials(given, fetch)


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop, with which a call costs a sixth less, if it is installed; otherwise one of asyncio."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    uvloop = importlib.import_module("uvloop")
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

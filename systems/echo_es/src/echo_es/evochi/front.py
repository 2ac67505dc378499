"""The front at which Evochi's clients join: a server of grpc.aio on a thread of its own, around a coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import tempfile
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from echo_core import ConfigError

from .doors import MetricsDoor, SharedDoor
from .metrics import Metrics
from .options import FrontOptions
from .service import Service

if TYPE_CHECKING:
    from ..search.coordinator import Coordinator

__all__ = ["EvochiFront"]

_log = logging.getLogger("echo.es")
STATE_BYTES = 256 << 20  # the largest message that a worker may send


class EvochiFront:
    """Serves evochi.v1 for a coordinator, from `start` to `close`.

    Args:
        coordinator: knows what there is to do.
        options: where and how.

    Attributes:
        port, metrics_port: where it listens, after `start`.
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
        """Listen. Raises OSError if a port cannot be bound."""
        self._thread = threading.Thread(target=self._run, name="echo-es-evochi", daemon=True)
        self._thread.start()
        self._started.result()
        return self

    def close(self) -> None:
        """Tell the workers that it is over, and free the ports. Idempotent."""
        if self._thread is None:
            return
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
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", STATE_BYTES), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((service.handlers(),))
        async with contextlib.AsyncExitStack() as stack:
            if options.metrics_same_port:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="echo-es-"))
                behind = f"{folder}/grpc"
                self._bind(server, f"unix:{behind}")
                shared = SharedDoor(self.metrics.text, behind)
                self.port = await self._open(shared, options.port, stack)
            else:
                self.port = self._bind(server, address_text(options.host, options.port))
            if options.metrics_port is not None:
                self.metrics_port = await self._open(MetricsDoor(self.metrics.text), options.metrics_port, stack)
            await server.start()
            stack.push_async_callback(server.stop, 1.0)
            service.begin()
            stack.push_async_callback(service.end)
            self._started.set_result(None)
            await self._ending.wait()

    def _bind(self, server: grpc.aio.Server, where: str) -> int:
        options = self._options
        try:
            if options.tls_certificate is None or options.tls_key is None:
                return int(server.add_insecure_port(where))
            pair = options.tls_key.read_bytes(), options.tls_certificate.read_bytes()
            return int(server.add_secure_port(where, grpc.ssl_server_credentials([pair])))
        except RuntimeError as error:
            raise OSError(f"cannot serve clients of Evochi at {where}: {error}; choose another port, or 0 for any free port") from None

    async def _open(self, door: MetricsDoor, port: int, stack: contextlib.AsyncExitStack) -> int:
        bound = await door.open(self._options.host, port)
        stack.push_async_callback(door.close)
        return bound


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop, with which a call costs a sixth less, if it is installed; otherwise one of asyncio."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    uvloop = importlib.import_module("uvloop")
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

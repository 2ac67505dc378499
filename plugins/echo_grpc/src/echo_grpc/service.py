"""The learner's end: a gRPC server whose calls are clients for `echo_net.channel`."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc

from echo_core.base.address import Address
from echo_core.base.errors import ProtocolError
from echo_net.channel import Acceptor, Channel
from echo_net.handshake import printable
from echo_net.network.connection_rate import ConnectionRateLimit
from echo_net.network.listening import found_by_trying, listening_sockets

from .arrivals import Arrivals
from .handshakes import Handshakes
from .memory import LEARNER_BYTES, give_back_freed_memory, keep_freed_memory
from .protobuf import MAX_MESSAGE_BYTES, health_request, health_response
from .stream import LINGER_SECONDS, GrpcChannel, Outbox, in_this_process

if TYPE_CHECKING:
    from .options import GrpcListenOptions

__all__ = ["METHOD", "GrpcAcceptor"]

SERVICE = "echo.v2.Experience"
METHOD = f"/{SERVICE}/Session"
HEALTH = "grpc.health.v1.Health"
SPARE_CALLS = 64  # calls beside those of clients and of workers that want to be clients: health checks ...
MOST_SILENT, MOST_WATCHING = 24, 32  # ... of which at most so many have sent no request yet, and at most so many watch
FRAME_BYTES = 1 << 20  # of HTTP/2; with 16 KiB, the default, streams are a tenth slower
IDLE_SECONDS = 60  # a connection without a call is ended


class GrpcAcceptor(Acceptor):
    """See `echo_net.channel.Acceptor`.

    Args:
        certificates: with TLS: makes grpcio's credentials from a function that grpcio calls for each connection.
    """

    def __init__(self, options: GrpcListenOptions, scheme: str, certificates: Callable[[Callable[[], None]], grpc.ServerCredentials] | None) -> None:
        in_this_process()
        keep_freed_memory(LEARNER_BYTES)
        self.health = Health(options.handshake_timeout)
        self._arrivals: Arrivals[GrpcChannel] = Arrivals(options.max_pending)
        self._closing = False
        self._rate_limit = ConnectionRateLimit(options.max_connection_rate, told=certificates is not None)
        self._handshakes = Handshakes(options.handshake_timeout, IDLE_SECONDS, _connections(options), self._arrivals.look, self._rate_limit.let_in)
        server = grpc.server(
            Threads(),
            options=_arguments(options),
            maximum_concurrent_rpcs=_calls(options),
            interceptors=() if certificates is None else (self._handshakes,),
        )
        session = grpc.stream_stream_rpc_method_handler(self._session)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {"Session": session}),
                grpc.method_handlers_generic_handler(HEALTH, self.health.methods()),
            )
        )
        if options.reflection:
            from .reflection import enable

            enable(server, SERVICE, HEALTH)
        host = f"[{options.host}]" if ":" in options.host else options.host
        place = f"{host}:{options.port}"
        try:
            if certificates is None:
                port = server.add_insecure_port(place)
            else:
                port = server.add_secure_port(place, certificates(self._handshakes.begun))
            server.start()
        except RuntimeError as error:
            server.stop(None)
            raise found_by_trying(options.host, options.port, error) from error
        self._server: grpc.Server | None = server
        self.address = Address(scheme, options.host, port)
        self._handshakes.where = str(self.address)
        self._listening = listening_sockets(options.host, port)
        self._rate_limit.watch(self._listening, str(self.address))

    def counts(self) -> Mapping[str, int]:
        """`refused` counts connections that failed before there was a channel, and calls over a session resumed after its certificate had expired."""
        return {"refused": self._handshakes.failed, "held_off_total": self._rate_limit.held_off}

    def _session(self, arriving: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if self._closing:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the learner is closing")
        outbox, over = Outbox(), threading.Event()

        def end() -> None:
            # The end of the answers ends the call after they are sent. A peer that does not read them is not waited for.
            if not over.is_set():
                timer = threading.Timer(LINGER_SECONDS, lambda: over.is_set() or context.cancel())
                timer.daemon = True
                try:
                    timer.start()
                except RuntimeError:  # no more threads
                    context.cancel()
                    return
                if not context.add_callback(timer.cancel):
                    timer.cancel()

        channel = GrpcChannel(outbox, arriving, _peer(context), end, lambda: None)
        connection = context.peer()

        def gone() -> None:
            over.set()
            outbox.abandon()
            self._arrivals.discard(connection, channel)
            give_back_freed_memory(channel.received + MAX_MESSAGE_BYTES)  # gRPC may have had a part of another message

        if not context.add_callback(gone):
            return
        crowded_out = self._arrivals.put(connection, channel)
        if over.is_set():
            self._arrivals.discard(connection, channel)
        if crowded_out is not None:
            crowded_out.shutdown()
        yield from outbox

    def accept(self) -> Channel:
        while True:
            seconds = self._handshakes.look()
            try:
                channel = self._arrivals.get(seconds)
            except EOFError:
                raise OSError(errno.ECANCELED, "closed") from None
            if channel is not None:
                return channel

    def shutdown(self) -> None:
        self._closing = True
        self.health.drain()
        self._arrivals.close()
        self._rate_limit.close()

    def close(self) -> None:
        """Free the address; running calls go on until `finish`."""
        for sock in self._listening:
            sock.close()
        if self._server is not None:
            self._server.stop(3600.0)

    def finish(self) -> None:
        """End every call and every thread; watchers of the health are informed first."""
        self.health.wait_told(LINGER_SECONDS)
        if self._server is not None:
            self._server.stop(None).wait()
            # The server refers to our methods. In a reference cycle, it might be collected in a forked child, where its destruction crashes.
            self._server = None


class Threads(Executor):
    """Starts a thread for each call, which ends with the call. A pool would keep as many threads as there ever were."""

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*arguments, **keywords))
            except BaseException as error:
                future.set_exception(error)

        try:
            threading.Thread(target=run, name="echo-grpc", daemon=True).start()
        except RuntimeError as error:  # no more threads; if raised here, it would end grpcio's own thread, and with it all later calls
            future.set_exception(error)
        return future


class Health:
    """grpc.health.v1: SERVING until the learner closes.

    Every client may ask. Each call is taken as a stream with one request: otherwise grpcio itself would wait for the request for ever, in the call's thread.

    Args:
        timeout: seconds that a caller has to send its request.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._changed = threading.Condition()
        self._draining = False
        self._watching = 0
        self._silent: dict[grpc.ServicerContext, None] = {}  # calls without a request yet, oldest first

    def methods(self) -> dict[str, grpc.RpcMethodHandler]:
        return {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }

    def drain(self) -> None:
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def wait_told(self, timeout: float) -> None:
        """After `drain`, wait until all watchers have been informed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._watching, timeout)

    def _service(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> str:
        """The service that the request asks for. If too many callers send no request, the oldest is sent away."""
        with self._changed:
            self._silent[context] = None
            oldest = next(iter(self._silent)) if len(self._silent) > MOST_SILENT else None
            if oldest is not None:
                del self._silent[oldest]
        if oldest is not None:
            oldest.cancel()
        try:
            timer = threading.Timer(self._timeout, context.cancel)
            timer.daemon = True
            timer.start()
            try:
                for request in requests:
                    return health_request(request)
            finally:
                timer.cancel()
        except ProtocolError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except RuntimeError:  # no more threads
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the learner is out of threads")
        finally:
            with self._changed:
                self._silent.pop(context, None)
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        raise AssertionError  # abort does

    def _check(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        if self._service(requests, context) not in ("", SERVICE):
            context.abort(grpc.StatusCode.NOT_FOUND, f"no such service here; ask for {SERVICE}")
        return health_response(2 if self._draining else 1)

    def _watch(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if self._service(requests, context) not in ("", SERVICE):
            yield health_response(3)
            return
        with self._changed:
            if self._watching >= MOST_WATCHING:  # each occupies a thread that others wait for
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watch; use Check")
            self._watching += 1
        try:
            over = threading.Event()

            def gone() -> None:
                over.set()
                with self._changed:
                    self._changed.notify_all()

            if not context.add_callback(gone):
                return
            if not self._draining:
                yield health_response(1)
            with self._changed:
                while not self._draining and not over.is_set():
                    self._changed.wait(10)
            if not over.is_set():
                yield health_response(2)
        finally:
            with self._changed:
                self._watching -= 1
                self._changed.notify_all()


def _arguments(options: GrpcListenOptions) -> list[tuple[str, Any]]:
    return [
        ("grpc.so_reuseport", 0),  # so that a second learner at the same address is an error
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # By default, gRPC measures the path and lets each call send as much as the path holds, up to a gigabyte, although nobody reads it.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", options.receive_window),
        ("grpc.http2.max_frame_size", FRAME_BYTES),
        ("grpc.max_concurrent_streams", _calls(options)),  # a proxy carries many workers on one connection
        ("grpc.max_allowed_incoming_connections", _connections(options)),
        ("grpc.server_handshake_timeout_ms", max(1, int(options.handshake_timeout * 1000))),  # for TLS and HTTP/2 together
        ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
        ("grpc.keepalive_time_ms", 20_000),  # so that the loss of a worker's machine is noticed
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 100),  # the shortest interval that workers may choose (keepalive=)
    ]


def _calls(options: GrpcListenOptions) -> int:
    """The most calls at a time: clients, those in their handshake, and as many that wait for a handshake."""
    return options.max_connections + 2 * options.max_pending + SPARE_CALLS


def _connections(options: GrpcListenOptions) -> int:
    """The most connections at a time, including those in their handshake."""
    return 2 * _calls(options)


def _peer(context: grpc.ServicerContext) -> str:
    """The peer's address: `127.0.0.1:5555`, `[::1]:5555`; with mutual TLS, the name in the certificate comes before it."""
    where = unquote(context.peer()).removeprefix("ipv4:").removeprefix("ipv6:")
    names = context.auth_context().get("x509_common_name", [])
    return f"{printable(names[0].decode('utf-8', 'replace'))}@{where}" if names else where

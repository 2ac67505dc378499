"""gRPC: `GrpcTransport` for a `Server` (`grpc://`), `GrpcsTransport` with TLS (`grpcs://`), `GrpcClient` for workers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

import grpc

from echo_core.base.address import Address
from echo_core.client.client import Client
from echo_core.security import tls
from echo_core.security.renewed import Renewed
from echo_core.security.tokens import check_exposure
from echo_core.wire.transport import Finding
from echo_net.channel import ChannelTransport

from . import follows_forks, talkative
from .connection import GrpcConnection
from .options import GrpcConnectOptions, GrpcListenOptions
from .protobuf import MAX_MESSAGE_BYTES
from .service import METHOD, GrpcAcceptor
from .stream import GrpcChannel, Outbox, in_this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from echo_core.spec.spec import Spec
    from echo_core.wire.transport import Connection

__all__ = ["GrpcClient", "GrpcTransport", "GrpcsTransport"]

log = logging.getLogger("echo")


class GrpcTransport(ChannelTransport):
    """A learner's end on gRPC.

    Args:
        **options: see `GrpcListenOptions`.

    Raises:
        ConfigError: an option is unknown or unusable.
    """

    scheme = "grpc"
    Options = GrpcListenOptions
    ConnectOptions = GrpcConnectOptions
    _hung_up: ClassVar[str] = "as a learner with TLS does (grpcs://)"

    def bind(self) -> GrpcAcceptor:
        options = self.options
        check_exposure(options.host, options.auth, options.allow_insecure)
        return GrpcAcceptor(options, self.scheme, None)

    @classmethod
    def connect(cls, address: Address, spec: Spec, **options: Any) -> Connection:
        return GrpcConnection(cls.dial, address, spec, cls.connect_options(address, options))

    @classmethod
    def findings(cls) -> Iterable[Finding]:
        if follows_forks:
            found = f"grpcio {grpc.__version__} with GRPC_ENABLE_FORK_SUPPORT starts its threads in forked children, where they disturb the parent or crash"
            yield Finding("warning", "gRPC and fork", found, "set GRPC_ENABLE_FORK_SUPPORT=0 in the environment, and start workers by spawn")
        else:
            yield Finding("ok", "gRPC and fork", f"grpcio {grpc.__version__}; connect in the child, never before the fork")

    @classmethod
    def dial(cls, address: Address, options: Any, timeout: float) -> GrpcChannel:
        in_this_process()
        host, port = address.endpoint
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        arguments: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.use_local_subchannel_pool", 1),  # each client has a connection of its own
            ("grpc.enable_retries", 0),  # Echo knows better what has arrived
            ("grpc.enable_http_proxy", 0),  # as over TCP, the address is that of the learner itself
            ("grpc.keepalive_time_ms", int(options.keepalive * 1000)),
            ("grpc.keepalive_timeout_ms", int(options.keepalive * 500)),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        channel = cls._channel(target, arguments, options)
        outbox = Outbox()
        try:
            call = channel.stream_stream(METHOD)(outbox)
            if not call.add_callback(outbox.abandon):  # senders get an error when the call ends
                outbox.close()
        except BaseException:
            channel.close()
            raise
        return GrpcChannel(outbox, call, target, call.cancel, channel.close, cls._hung_up)

    @classmethod
    def _channel(cls, target: str, arguments: list[tuple[str, Any]], options: Any) -> grpc.Channel:
        return grpc.insecure_channel(target, options=arguments)


class GrpcsTransport(GrpcTransport):
    """The same transport with TLS: `grpcs://`."""

    scheme = "grpcs"
    _hung_up = "as a learner does that asks workers for certificates: give tls_certificate and tls_key, of its tls_client_authority and not expired"

    def bind(self) -> GrpcAcceptor:
        options = self.options
        authority = options.tls_client_authority
        check_exposure(options.host, options.auth or authority is not None, options.allow_insecure)
        if talkative:
            log.warning(
                "grpcio was imported before its log was set to errors, so unauthenticated clients can make it write a line to stderr for each TLS handshake"
                " that fails; set GRPC_VERBOSITY=ERROR in the environment, or import echo_grpc first"
            )
        certificates = Renewed(lambda: _certificates(options), options)

        def credentials(begun: Callable[[], None]) -> grpc.ServerCredentials:
            given = certificates()

            def fetch() -> grpc.ServerCertificateConfiguration | None:
                nonlocal given
                begun()
                before, given = given, certificates()
                return None if given is before else given  # None: gRPC goes on with what it has, and clients resume their sessions

            return grpc.dynamic_ssl_server_credentials(given, fetch, authority is not None)

        return GrpcAcceptor(options, self.scheme, credentials)

    @classmethod
    def _channel(cls, target: str, arguments: list[tuple[str, Any]], options: Any) -> grpc.Channel:
        tls.client_context(options)  # gRPC would only log that a certificate is unusable, and try again until the time is over
        key, certificate = tls.client_identity(options)
        credentials = grpc.ssl_channel_credentials(tls.trusted(options) or None, key, certificate)
        if options.tls_server_name:
            arguments.append(("grpc.ssl_target_name_override", options.tls_server_name))
        return grpc.secure_channel(target, credentials, options=arguments)


def _certificates(options: GrpcListenOptions) -> grpc.ServerCertificateConfiguration:
    tls.server_context(options, options.host)  # gRPC would only log that a certificate is unusable
    with tls.server_identity(options, options.host) as identity:
        pair = identity.key.read_bytes(), identity.certificate.read_bytes()
    authority = options.tls_client_authority
    return grpc.ssl_server_certificate_configuration([pair], None if authority is None else authority.read_bytes())


class GrpcClient(Client):
    """A worker's connection over gRPC.

    Args:
        host: the learner's host name or address.
        port: its port.
        example: a pytree like the server's: one sample.
        tls: whether the learner listens with TLS (`grpcs://`).
        **options: the options of `echo_core.Client`.

    Raises: the errors of `echo_core.Client`.
    """

    def __init__(self, host: str, port: int, example: Any, *, tls: bool = False, **options: Any) -> None:
        super().__init__(Address("grpcs" if tls else "grpc", host, port), example, **options)

"""TCP: `TcpTransport` for a `Server`, `TcpsTransport` with TLS, `TcpClient` for workers that use the original Echo API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from echo_core.base.address import Address
from echo_core.base.errors import AddressError
from echo_core.client.client import Client
from echo_core.security import tls
from echo_core.security.tokens import TokenSource, check_exposure
from echo_core.wire.channel import Channel, ChannelTransport
from echo_core.wire.transport import Connection, Transport

from .connection import TcpConnection
from .options import TcpConnectOptions, TcpListenOptions, TcpsConnectOptions, TcpsListenOptions

if TYPE_CHECKING:
    from echo_core.spec.spec import Spec
    from echo_core.wire.sink import Sink

    from .listener import TcpListener
    from .secure import TlsAcceptor

__all__ = ["TcpClient", "TcpTransport", "TcpsTransport"]


class TcpTransport(Transport):
    """A learner's end on TCP.

    Args:
        port: the port to listen at; 0 picks a free port (`server.port` says which).
        num_threads: threads that read from workers.
        host: loopback by default, so other machines cannot connect unless you allow it.
        protocol: "echo2", or "echo1" for workers of the original Echo.
        token: the secret of clients, if it differs from the server's.
        auth: False serves every client that can connect.
        allow_insecure: listen beyond this machine although every client may connect.
        **options: see `TcpListenOptions`.

    Raises:
        ConfigError: an option is unknown or unusable.
    """

    scheme = "tcp"
    Options = TcpListenOptions
    ConnectOptions = TcpConnectOptions

    def __init__(
        self, port: int = 50051, num_threads: int = 1, host: str = "127.0.0.1", **options: Any
    ) -> None:
        super().__init__(port=port, num_threads=num_threads, host=host, **options)

    def listen(self, sink: Sink) -> TcpListener:
        from .listener import TcpListener

        options = self.options
        check_exposure(options.host, options.authenticated, options.allow_insecure, tokens=options.protocol != "echo1")
        tokens: Callable[[], Sequence[bytes]] = tuple
        if options.authenticated:
            tokens = (lambda: sink.tokens) if options.token is None else TokenSource(options.token)
        return TcpListener(options, sink, tokens)

    @classmethod
    def connect(cls, address: Address, spec: Spec, **options: Any) -> Connection:
        _without_path(address)
        return TcpConnection(address, spec, cls.connect_options(address, options))


class TcpsTransport(ChannelTransport):
    """TCP with TLS 1.3: `tcps://`. Python threads read and write frames, and native code the records; docs/security.md says what TLS costs.

    Args:
        **options: see `TcpsListenOptions`.

    Raises:
        ConfigError: an option is unknown or unusable.
    """

    scheme = "tcps"
    Options = TcpsListenOptions
    ConnectOptions = TcpsConnectOptions

    def bind(self) -> TlsAcceptor:
        from .secure import TlsAcceptor

        options = self.options
        known = options.auth or options.tls_client_authority is not None
        check_exposure(options.host, known, options.allow_insecure)
        return TlsAcceptor(options, tls.server_context(options, options.host))

    @classmethod
    def connect(cls, address: Address, spec: Spec, **options: Any) -> Connection:
        _without_path(address)
        return super().connect(address, spec, **options)

    @classmethod
    def dial(cls, address: Address, options: Any, timeout: float) -> Channel:
        from .secure import dial_tls

        return dial_tls(address, tls.client_context(options), options.tls_server_name, timeout)


def _without_path(address: Address) -> None:
    if address.path:
        raise AddressError(f'"{address}" has a path, which means nothing here; write "{replace(address, path="")}"')


class TcpClient(Client):
    """A worker's connection over TCP, with the constructor of the original Echo.

    Args:
        host: the learner's host name or address.
        port: its port.
        example: a pytree like the server's: one sample.
        max_inflight_msgs: the number of unacknowledged samples at which `send()` waits; None
            leaves it to the transport.
        tls: whether the learner listens with TLS (`tcps://`).
        **options: the options of `echo_core.Client`.

    Raises: the errors of `echo_core.Client`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        example: Any,
        max_inflight_msgs: int | None = None,
        *,
        tls: bool = False,
        **options: Any,
    ) -> None:
        if max_inflight_msgs is not None:
            options["max_inflight_msgs"] = max_inflight_msgs
        super().__init__(Address("tcps" if tls else "tcp", host, port), example, **options)

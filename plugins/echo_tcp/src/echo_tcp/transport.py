"""TCP: `TcpTransport` for a `Server`, `TcpsTransport` with TLS, `TcpClient` for workers that use the original Echo API."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

from echo_core.base.address import Address
from echo_core.base.errors import AddressError, ConnectionClosedError, EchoTimeoutError, JobEnded
from echo_core.client.client import Client
from echo_core.security import tls
from echo_core.security.renewed import Renewed
from echo_core.security.tokens import TokenSource, check_exposure
from echo_core.wire.transport import Connection, Listener, Transport
from echo_net.channel import Channel, ChannelTransport

from .connection import TcpConnection
from .options import TcpConnectOptions, TcpListenOptions, TcpsConnectOptions, TcpsListenOptions

if TYPE_CHECKING:
    from echo_core.client.leftovers import Leftover
    from echo_core.spec.spec import Spec
    from echo_core.wire.sink import Sink

    from .channels.secure import TlsAcceptor

__all__ = ["TcpClient", "TcpTransport", "TcpsTransport"]

STANDSTILL_SECONDS = 1.0  # so long TcpClient.close() waits for a learner that commits nothing


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

    def listen(self, sink: Sink) -> Listener:
        from .listener.listener import TcpListener

        options: TcpListenOptions = self.options
        check_exposure(options.host, options.authenticated, options.allow_insecure, tokens=options.protocol != "echo1")
        if options.checksum:
            from .channels.checksum import listen_checked

            return listen_checked(options, sink)
        tokens: Callable[[], Sequence[bytes]] = tuple
        if options.authenticated:
            tokens = (lambda: sink.tokens) if options.token is None else TokenSource(options.token)
        return TcpListener(options, sink, tokens)

    @classmethod
    def connect(cls, address: Address, spec: Spec, **options: Any) -> Connection:
        _without_path(address)
        chosen: TcpConnectOptions = cls.connect_options(address, options)
        if chosen.checksum:
            from .channels.checksum import connect_checked

            return connect_checked(address, spec, chosen)
        return TcpConnection(address, spec, chosen)


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
        from .channels.secure import TlsAcceptor

        options = self.options
        known = options.auth or options.tls_client_authority is not None
        check_exposure(options.host, known, options.allow_insecure)
        return TlsAcceptor(options, Renewed(lambda: tls.server_context(options, options.host), options))

    @classmethod
    def connect(cls, address: Address, spec: Spec, **options: Any) -> Connection:
        _without_path(address)
        return super().connect(address, spec, **options)

    @classmethod
    def dial(cls, address: Address, options: Any, timeout: float) -> Channel:
        from .channels.secure import dial_tls

        return dial_tls(address, tls.client_context(options), options.tls_server_name, timeout)


def _without_path(address: Address) -> None:
    if address.endpoint and address.path:  # an address without a port has no endpoint
        raise AddressError(f'"{address}" has a path, which means nothing here; write "{replace(address, path="")}"')


class TcpClient(Client):
    """A worker's connection over TCP, with the constructor of the original Echo.

    Args:
        host: the learner's host name or address.
        port: its port.
        example: a pytree like the server's: one sample. `data_sample` is its name in the original Echo.
        max_inflight_msgs: the number of unacknowledged samples at which `send()` waits; None
            leaves it to the transport.
        tls: whether the learner listens with TLS (`tcps://`).
        **options: the options of `echo_core.Client`.

    Raises: the errors of `echo_core.Client`, and TypeError without an example or with two.
    """

    def __init__(
        self,
        host: str,
        port: int,
        example: Any = None,
        max_inflight_msgs: int | None = None,
        *,
        data_sample: Any = None,
        tls: bool = False,
        **options: Any,
    ) -> None:
        if example is not None and data_sample is not None:
            raise TypeError("example and data_sample are two names of the same argument; give one of them")
        if example is None:
            example = data_sample
        if example is None:
            raise TypeError("TcpClient needs the example pytree, one sample: TcpClient(host, port, example)")
        if max_inflight_msgs is not None:
            options["max_inflight_msgs"] = max_inflight_msgs
        super().__init__(Address("tcps" if tls else "tcp", host, port), example, **options)

    @overload
    def close(self, timeout: float | None = None, *, leftovers: Literal[False] = False) -> None: ...

    @overload
    def close(self, timeout: float | None = None, *, leftovers: Literal[True]) -> list[Leftover]: ...

    def close(self, timeout: float | None = None, *, leftovers: bool = False) -> list[Leftover] | None:
        """Deliver all samples of `send`, then close. Idempotent.

        Args:
            timeout: seconds, as in `Client.close`. None waits for as long as the learner commits samples. When a connected learner commits
                none for 1 s, because its store is full and nobody samples, this gives up with a RuntimeWarning that says how many are left.
            leftovers: return what was not delivered, as `Client.close` does.

        Raises:
            EchoTimeoutError: `timeout` is over. ConnectionClosedError: the learner is gone. The message says how many samples were
                not acknowledged, and the client is closed anyway.
        """
        if leftovers:
            return super().close(timeout, leftovers=True)
        try:
            super().close(0 if timeout is None and self._stands_still() else timeout)
        except JobEnded as error:
            super().close(timeout)
            if error.unacknowledged:
                raise
        except EchoTimeoutError as error:
            if timeout is not None:
                raise
            warnings.warn(f"{error}. TcpClient.close() waits no longer than {STANDSTILL_SECONDS:g} s for a learner that commits nothing; "
                          "give close(timeout=...) to wait longer", RuntimeWarning, stacklevel=2)
        return None

    @property
    def _in_flight_count(self) -> int:
        """`unacknowledged`, under the name that programs for the original Echo read."""
        return self.unacknowledged

    def _stands_still(self) -> bool:
        """Wait for the delivery of all samples; returns True if a connected learner commits none of them any more."""
        left, since = self.unacknowledged, time.monotonic()
        while time.monotonic() - since < STANDSTILL_SECONDS:
            try:
                self.wait(STANDSTILL_SECONDS / 10)
                return False
            except EchoTimeoutError:
                before, left = left, self.unacknowledged
                if left < before:
                    since = time.monotonic()
            except JobEnded:  # close() raises it: Client.close() says it only once
                raise
            except ConnectionClosedError:
                return False
        return bool(self.stats()["connected"])

"""TCP for Echo. This module only announces the transports; their code is imported when one is selected."""

from __future__ import annotations

from collections.abc import Iterable

from echo_core.plugins.hookspecs import TransportInfo, hookimpl


@hookimpl
def echo_transports() -> Iterable[TransportInfo]:
    return [
        TransportInfo(
            name="tcp",
            factory="echo_tcp.transport:TcpTransport",
            client="echo_tcp.transport:TcpClient",
            api=1,
            summary="TCP over IPv4 and IPv6: native at both ends, token authentication",
        ),
        TransportInfo(
            name="tcps",
            factory="echo_tcp.transport:TcpsTransport",
            client="echo_tcp.transport:TcpClient",
            api=1,
            summary="TCP with TLS 1.3",
        ),
    ]

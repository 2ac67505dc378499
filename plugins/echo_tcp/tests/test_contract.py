"""TCP keeps the contract of `echo_core.transport`."""

from __future__ import annotations

from typing import Any

from echo_core.testing import TransportContract
from echo_tcp.transport import TcpTransport


class TestTcp(TransportContract):
    def transport(self, **options: Any) -> TcpTransport:
        return TcpTransport(port=0, **options)


class TestTcpWithManyThreads(TestTcp):
    def transport(self, **options: Any) -> TcpTransport:
        return TcpTransport(port=0, num_threads=3, **options)


class TestTcp6(TestTcp):
    def transport(self, **options: Any) -> TcpTransport:
        return TcpTransport(port=0, host="::1", **options)

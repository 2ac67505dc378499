"""TCP keeps the contract of `echo_core.wire.transport`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from echo_tcp.transport import TcpsTransport, TcpTransport
from echo_testing import Capabilities, TransportContract


@pytest.mark.every_python  # a marker would be inherited, so the other classes derive from the contract itself
class TestTcp(TransportContract):
    def transport(self, **options: Any) -> TcpTransport:
        return TcpTransport(port=0, **options)


class TestTcp6WithManyThreads(TransportContract):
    variant = True

    def transport(self, **options: Any) -> TcpTransport:
        return TcpTransport(port=0, host="::1", num_threads=3, **options)


class TestTcpWithChecksums(TransportContract):
    variant = True
    capabilities = Capabilities(damage_proof=True)
    connect_options: ClassVar[dict[str, Any]] = {"checksum": True}

    def transport(self, **options: Any) -> TcpTransport:
        return TcpTransport(port=0, checksum=True, **options)


class TestTcps(TransportContract):
    capabilities = Capabilities(damage_proof=True)

    @pytest.fixture
    def config_home(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """One authority for all tests, because it takes a moment to make one."""
        return tmp_path_factory.getbasetemp() / "config"

    def transport(self, **options: Any) -> TcpsTransport:
        return TcpsTransport(port=0, **options)

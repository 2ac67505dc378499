"""gRPC keeps the contract of `echo_core.transport`, with TLS and without."""

from __future__ import annotations

from typing import Any

import pytest

from echo_core.testing import Capabilities, TransportContract
from echo_grpc.transport import GrpcsTransport, GrpcTransport


class TestGrpc(TransportContract):
    capabilities = Capabilities(forks=False)

    def transport(self, **options: Any) -> GrpcTransport:
        return GrpcTransport(port=0, **options)


class TestGrpcs(TestGrpc):
    @pytest.fixture(autouse=True)
    def _own_authority(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))

    def transport(self, **options: Any) -> GrpcsTransport:
        return GrpcsTransport(port=0, **options)

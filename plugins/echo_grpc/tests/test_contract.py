"""gRPC keeps the contract of `echo_core.transport`, with TLS and without."""

from __future__ import annotations

from typing import Any

from echo_core.testing import Capabilities, TlsContract, TransportContract
from echo_grpc.transport import GrpcsTransport, GrpcTransport


class TestGrpc(TransportContract):
    capabilities = Capabilities(forks=False)

    def transport(self, **options: Any) -> GrpcTransport:
        return GrpcTransport(port=0, **options)


class TestGrpcs(TestGrpc):
    def transport(self, **options: Any) -> GrpcsTransport:
        return GrpcsTransport(port=0, **options)


class TestCertificates(TlsContract):
    def transport(self, **options: Any) -> GrpcsTransport:
        return GrpcsTransport(port=0, **options)

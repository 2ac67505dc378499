"""gRPC keeps the contract of `echo_core.wire.transport`, with TLS and without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from echo_core import Client, EchoTimeoutError, Server
from echo_grpc.transport import GrpcsTransport, GrpcTransport
from echo_testing import Capabilities, TlsContract, TransportContract
from echo_testing.tls import EXAMPLE, TOKEN, Certificates, given


class TestGrpc(TransportContract):
    capabilities = Capabilities(forks=False)

    def transport(self, **options: Any) -> GrpcTransport:
        return GrpcTransport(port=0, **options)


class TestGrpcs(TestGrpc):
    variant = True
    capabilities = Capabilities(forks=False, damage_proof=True)

    def transport(self, **options: Any) -> GrpcsTransport:
        return GrpcsTransport(port=0, **options)


class TestCertificates(TlsContract):
    plain_scheme = "grpc"

    def transport(self, **options: Any) -> GrpcsTransport:
        return GrpcsTransport(port=0, **options)

    def test_one_end_without_tls_is_told_of_it(self, certificates: Certificates) -> None:
        hung_up = pytest.raises(EchoTimeoutError, match=r"as a learner with TLS does \(grpcs://\)")
        with Server(EXAMPLE, 2, self.transport(**given(certificates.learner)), token=TOKEN) as server, hung_up:
            Client(replace(server.address, scheme="grpc"), EXAMPLE, token=TOKEN, timeout=2)
        no_tls = pytest.raises(EchoTimeoutError, match="answers without TLS: use grpc://")
        with Server(EXAMPLE, 2, GrpcTransport(port=0), token=TOKEN) as server, no_tls:
            Client(replace(server.address, scheme="grpcs"), EXAMPLE, **self.trust(certificates, timeout=2))

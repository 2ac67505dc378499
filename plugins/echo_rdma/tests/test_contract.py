"""UCX keeps the contract of `echo_core.wire.transport`, over TCP and over shared memory."""

from __future__ import annotations

import os
from typing import Any

import pytest

from echo_rdma.transport import RdmaTransport
from echo_testing import Capabilities, TransportContract
from echo_testing.processes import SLOWER

VERBS = {"require_rdma": True, "lease": 10.0 * SLOWER}  # a lease of the default length, on a machine that may be emulated


@pytest.mark.usefixtures("ucx")
class OverUcx(TransportContract):
    capabilities = Capabilities(forks=False, relayable=False)
    lanes = ""

    @pytest.fixture(autouse=True)
    def _lanes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("UCX_TLS", self.lanes)

    def transport(self, **options: Any) -> RdmaTransport:
        return RdmaTransport(port=0, **options)


@pytest.mark.skipif("ECHO_RDMA_LANES" not in os.environ, reason="for a machine with RDMA devices: ECHO_RDMA_LANES, ECHO_RDMA_HOST (`nox -s rdma_vm`)")
class TestOverVerbs(OverUcx):
    capabilities = Capabilities(forks=False, severable=False, relayable=False)  # queue pairs are not sockets, so a test cannot cut them
    lanes = os.environ.get("ECHO_RDMA_LANES", "")
    connect_options = VERBS

    def transport(self, **options: Any) -> RdmaTransport:
        return RdmaTransport(**{"port": 0, "host": os.environ["ECHO_RDMA_HOST"], "handshake_timeout": 10.0 * SLOWER, "allow_insecure": True, **VERBS} | options)


class TestOverTcp(OverUcx):
    variant = True
    lanes = "tcp"


@pytest.mark.usefixtures("shared_memory")
class TestOverSharedMemory(OverUcx):
    capabilities = Capabilities(forks=False, relayable=False, independent=False)  # see ucx/watch.hpp
    lanes = "sysv,cma,tcp"

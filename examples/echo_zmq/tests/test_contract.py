"""ZeroMQ keeps the contract of `echo_core.wire.transport`."""

from __future__ import annotations

from typing import Any

from echo_zmq.transport import ZmqTransport

from echo_testing import TransportContract


class TestZmq(TransportContract):
    def transport(self, **options: Any) -> ZmqTransport:
        return ZmqTransport(port=0, **options)

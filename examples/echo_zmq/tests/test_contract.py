"""ZeroMQ keeps the contract of `echo_core.wire.transport`."""

from __future__ import annotations

from typing import Any

from echo_zmq.transport import ZmqTransport

from echo_testing import TransportContract
from echo_testing.rig import PATIENCE, Rig, drain
from echo_testing.samples import stacked

ZMTP_1_WITHOUT_IDENTITY = b"\x01\x00"
ZMTP_1_HELLO = b"\x02\x00H"  # one frame: its length, no flags, and the message that begins a conversation


class TestZmq(TransportContract):
    def transport(self, **options: Any) -> ZmqTransport:
        return ZmqTransport(port=0, **options)

    def test_a_peer_of_unknown_address_disturbs_nobody(self, rig: Rig) -> None:
        server = rig.server()
        with self.dial(server.address) as stranger:
            stranger.sendall(ZMTP_1_WITHOUT_IDENTITY + ZMTP_1_HELLO)
            while (answer := stranger.recv(64)) and b"B" not in answer:  # a beat: the learner has taken it for a worker
                pass
            stranger.settimeout(PATIENCE)
            rig.client(server).send_batch(stacked(1, 0, 16))
            drain(server, 16).check({1: 16})

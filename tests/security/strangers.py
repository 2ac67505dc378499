"""How strangers reach a learner over every network transport."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np

from echo_core.base.address import Address
from echo_core.plugins import discovery
from echo_net.channel import Channel, ChannelTransport

TOKEN = "the-token-of-these-tests-which-is-long-enough"
EXAMPLE = {"x": np.zeros(4, np.float32), "n": np.zeros((), np.int64)}
SCHEMES = ("tcp", "tcps", "grpc", "grpcs")


class SocketChannel(Channel):
    """A plain socket."""

    def __init__(self, address: Address) -> None:
        self.sock = socket.create_connection(address.endpoint, timeout=20)

    def send(self, buffers: Any) -> None:
        self.sock.sendall(b"".join(buffers))

    def recv_into(self, buffer: memoryview) -> int:
        return self.sock.recv_into(buffer)

    def shutdown(self) -> None:
        self.sock.close()

    def close(self) -> None:
        self.sock.close()


def dial(address: Address) -> Channel:
    """The bytes of a connection to `address` before any handshake of Echo's, TLS included."""
    transport = discovery.transport_class(address.scheme)
    if issubclass(transport, ChannelTransport):
        return transport.dial(address, transport.connect_options(address, {}), 20)
    return SocketChannel(address)


def receive(channel: Channel) -> bytes:
    """What has come, at least a byte; nothing when the other end has hung up."""
    buffer = bytearray(65536)
    try:
        return bytes(buffer[: channel.recv_into(memoryview(buffer))])
    except OSError:
        return b""

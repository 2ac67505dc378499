"""ZeroMQ: `Server(..., transport="zmq://127.0.0.1:5555")` and `Client("zmq://127.0.0.1:5555", ...)`."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass, field
from typing import Any

import zmq

from echo_core.base.address import Address
from echo_core.base.transport_options import ListenOptions
from echo_core.security.tokens import check_exposure
from echo_net.channel import Acceptor, Channel, ChannelTransport

from .post import LearnersPost, WorkersPost

__all__ = ["ZmqListenOptions", "ZmqTransport"]


@dataclass(frozen=True, kw_only=True)
class ZmqListenOptions(ListenOptions):
    """Options of `ZmqTransport`."""

    host: str = "127.0.0.1"  # an address or name of this machine
    port: int = 50051  # 0: any free one
    token: str | bytes | None = field(default=None, repr=False)  # None: the server's
    allow_insecure: bool = False  # listen beyond this machine without authentication

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be a whole number from 0 to 65535, not {self.port}")


class ZmqAcceptor(Acceptor):
    """See `echo_net.channel.Acceptor`."""

    def __init__(self, options: ZmqListenOptions) -> None:
        try:
            self._post = LearnersPost(endpoint(options.host, options.port), options.max_pending)
        except (zmq.ZMQError, OSError) as error:
            raise OSError(error.errno or 0, f"cannot listen at zmq://{options.host}:{options.port}: {error}") from error
        self.address = Address("zmq", options.host, int(self._post.endpoint.rpartition(":")[2]))
        self._post.start()

    def accept(self) -> Channel:
        channel = self._post.arrivals.get()
        if channel is None:
            raise OSError(errno.ECANCELED, "closed")
        return channel

    def shutdown(self) -> None:
        self._post.deaf = True
        self._post.arrivals.put(None)

    def close(self) -> None:
        """ZeroMQ ends all connections together with the address, so `finish` frees it."""

    def finish(self) -> None:
        self._post.end()


class ZmqTransport(ChannelTransport):
    """A learner's end on ZeroMQ; see `ZmqListenOptions`."""

    scheme = "zmq"
    Options = ZmqListenOptions

    def bind(self) -> Acceptor:
        check_exposure(self.options.host, self.options.auth, self.options.allow_insecure)
        return ZmqAcceptor(self.options)

    @classmethod
    def dial(cls, address: Address, options: Any, timeout: float) -> Channel:
        post = WorkersPost(endpoint(*address.endpoint), str(address))
        try:
            post.start()
        except RuntimeError:  # no more threads
            post.free()
            raise
        return post.channel


def endpoint(host: str, port: int) -> str:
    """What ZeroMQ calls it. OSError if there is no such host."""
    number = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    return f"tcp://[{number}]:{port}" if ":" in number else f"tcp://{number}:{port}"

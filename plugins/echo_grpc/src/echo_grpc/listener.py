"""The learner's end of gRPC: a channel listener that ends the gRPC server with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echo_core.wire.channel.listener import ChannelListener

from .service import GrpcAcceptor

if TYPE_CHECKING:
    from typing import Self

    from echo_core.base.transport_options import ListenOptions
    from echo_core.wire.channel import Acceptor
    from echo_core.wire.sink import Sink

__all__ = ["GrpcListener"]


class GrpcListener(ChannelListener):
    """See `echo_core.wire.channel.listener`: ends the gRPC server when its clients are gone."""

    _acceptor: GrpcAcceptor

    @classmethod
    def on(cls, acceptor: Acceptor, sink: Sink, options: ListenOptions) -> Self:
        try:
            return super().on(acceptor, sink, options)
        except BaseException:
            assert isinstance(acceptor, GrpcAcceptor)
            acceptor.finish()  # closing frees the address only: grpcio's server and its thread would go on
            raise

    def close(self, timeout: float | None = None) -> None:
        try:
            super().close(timeout)
        finally:  # interrupted too: a thread of grpcio's would keep the process until the last call ends
            self._acceptor.finish()

"""A whole transport out of two methods, `dial` and `bind`; see docs/plugins/transport.md."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from echo_core.wire.transport import Connection, Listener, Transport

from .channel import Acceptor, Channel
from .connection import ChannelConnection
from .listener import ChannelListener

if TYPE_CHECKING:
    from echo_core.base.address import Address
    from echo_core.spec.spec import Spec
    from echo_core.wire.sink import Sink

__all__ = ["ChannelTransport"]


class ChannelTransport(Transport):
    """A transport over anything that carries bytes in order: implement `dial` and `bind`."""

    @classmethod
    @abstractmethod
    def dial(cls, address: Address, options: Any, timeout: float) -> Channel:
        """Reach the learner at `address`. OSError if it cannot be reached now: it is tried again.

        `options` is the `ConnectOptions` in use; `timeout`, in seconds, bounds one attempt.
        """

    @abstractmethod
    def bind(self) -> Acceptor:
        """Take the address that `self.options` describe. OSError if that is not possible."""

    def listen(self, sink: Sink) -> Listener:
        return ChannelListener.on(self.bind(), sink, self.options)

    @classmethod
    def connect(cls, address: Address, spec: Spec, **options: Any) -> Connection:
        return ChannelConnection(cls.dial, address, spec, cls.connect_options(address, options))

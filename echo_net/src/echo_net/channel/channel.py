"""The two classes that the author of a transport over a byte stream writes: `Channel` and `Acceptor`. `ChannelTransport` makes a transport of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from echo_core.wire.protocol import Buffer

if TYPE_CHECKING:
    from echo_core.base.address import Address

__all__ = ["Acceptor", "Channel"]

Produce = Callable[[], Sequence[Buffer] | None]


class Channel(ABC):
    """A reliable, ordered stream of bytes to one peer.

    One thread sends while another receives, and any thread may call `shutdown`. `send` and `recv_into` block without a limit: Echo keeps its
    timeouts by shutting the channel down. Both raise OSError if they fail, which means that the connection is lost.

    Attributes:
        peer: a name of the other end, for people.
    """

    peer: str = ""

    @abstractmethod
    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send all bytes of the buffers, one buffer after another, and return when their memory may change."""

    @abstractmethod
    def recv_into(self, buffer: memoryview) -> int:
        """Wait for bytes and put at least one of them into `buffer`, which is never empty.

        Returns:
            The number of bytes, or 0 if the peer has ended the stream.
        """

    def receive(self) -> Buffer | None:
        """Wait for the next piece, if the bytes of this channel arrive in pieces of memory. Echo then calls this instead of `recv_into`.

        Returns:
            The piece, whose memory must not change any more; an empty one at the end of the stream; or None if this channel has no pieces.
        """
        return None

    def pull(self, produce: Produce, lost: Callable[[Exception], None]) -> bool:
        """Begin to send by asking for the buffers, if this channel sends in a thread of its own. Echo then never calls `send`.

        Args:
            produce: returns the next buffers to send, and waits until there are some. Call it when the buffers before are sent. It returns None
                at the end, and never raises.
            lost: call it with the error if the connection is lost, but neither within this call nor within `shutdown`.

        Returns:
            True if this channel asks from now on, False if Echo has to call `send`.
        """
        return False

    @abstractmethod
    def shutdown(self) -> None:
        """End the stream. Calls of `send` and `recv_into` return or raise at once, those that are blocked and later ones. Bytes that were
        sent before still arrive. This never raises, and may be called several times."""

    @abstractmethod
    def close(self) -> None:
        """Free the file descriptor or memory. Echo calls this once, when no other call runs or will follow. It also calls it in a forked
        child, where it must not disturb the parent's connection."""


class Acceptor(ABC):
    """The place where clients arrive, such as a listening socket.

    Attributes:
        address: the address that clients give to `dial`.
    """

    address: Address

    @abstractmethod
    def accept(self) -> Channel:
        """Wait for the next client.

        Raises:
            OSError: resources have run out, and Echo calls this again after a pause; or `shutdown` was called.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Make a blocked `accept` raise OSError. This never raises."""

    @abstractmethod
    def close(self) -> None:
        """Free the address. Echo calls this once, after the last `accept` has returned. The channels from `accept` stay open."""

    def finish(self) -> None:  # noqa: B027  # most have nothing left to end
        """End what the channels still needed after `close`. Echo calls this when every client has gone or its time is over, and also if the
        listener could not be made."""

    def counts(self) -> Mapping[str, int]:
        """The counters of this acceptor, which Echo adds to those of the listener that have the same names. Any thread may call this at any time."""
        return {}

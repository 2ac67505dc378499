"""What the author of a transport over a byte stream writes: `Channel` and `Acceptor`. `ChannelTransport` turns them into a whole transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..protocol import Buffer

if TYPE_CHECKING:
    from ...base.address import Address

__all__ = ["Acceptor", "Channel"]

Produce = Callable[[], Sequence[Buffer] | None]


class Channel(ABC):
    """A reliable, ordered stream of bytes to one peer.

    One thread sends and another receives at the same time; `shutdown` may come from any thread.
    Both block for as long as it takes: every timeout is kept by shutting the channel down.
    Failures are OSErrors, and mean that the connection is lost.
    """

    peer: str = ""  # names the other end, for people

    @abstractmethod
    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send the buffers whole, one after another; return once their memory may change."""

    @abstractmethod
    def recv_into(self, buffer: memoryview) -> int:
        """Wait for bytes, put at least one into `buffer` (never empty), return how many; 0 when
        the peer has ended the stream."""

    def receive(self) -> Buffer | None:
        """`recv_into` for channels whose bytes come in pieces of memory already: the next piece,
        which nobody will change; empty at the end. None: this channel has none, use `recv_into`."""
        return None

    def pull(self, produce: Produce, lost: Callable[[Exception], None]) -> bool:
        """`send` for channels that ask for what to send, in a thread of their own: from now on
        `produce()` gives, or waits for, the next buffers once those before are sent, and None at
        the end; it never raises. Should the connection be lost, call `lost(error)`, but not from
        here or within `shutdown`. False: this channel does not ask, use `send`."""
        return False

    @abstractmethod
    def shutdown(self) -> None:
        """End the stream: blocked `send` and `recv_into` return or raise at once, later ones
        too; what was sent before still arrives. Never raises; may be called again."""

    @abstractmethod
    def close(self) -> None:
        """Free the file descriptor or memory. Called once, when no other call runs or will come;
        also in a forked child, where it must not disturb the parent's end."""


class Acceptor(ABC):
    """Where clients arrive: a listening socket, a mailbox."""

    address: Address  # what a client's `dial` is to be given

    @abstractmethod
    def accept(self) -> Channel:
        """Wait for the next client. OSError when out of resources (it is called again after a
        pause) or after `shutdown`."""

    @abstractmethod
    def shutdown(self) -> None:
        """Make the blocked `accept` raise OSError. Never raises."""

    @abstractmethod
    def close(self) -> None:
        """Free the address. Called once, after the last `accept` has returned; the channels that it gave go on."""

    def finish(self) -> None:  # noqa: B027  # most have nothing left to end
        """End whatever the channels needed of it. Called after `close`, when every client has gone or its time is over, also when the
        listener could not be made."""

    def counts(self) -> Mapping[str, int]:
        """What it counts itself, from any thread at any time: added to what the listener counts under the same names."""
        return {}

"""The worker's connection. Full pieces of its window of unacknowledged samples are complete gRPC messages in memory, which saves one copy of each byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from echo_core.wire.protocol import HEADER_BYTES, Kind, pack_header
from echo_net.channel.connection import ChannelConnection
from echo_net.channel.uplink import Uplink
from echo_net.channel.window import Entry, Window
from echo_net.gather import Chunk

from .protobuf import ENVELOPE_BYTES, PIECE_BYTES, EncodedMessage, envelope

if TYPE_CHECKING:
    from echo_core.spec.pytree.flattener import Flattener

__all__ = ["GrpcConnection"]

LARGE_BYTES = 256 << 10  # samples larger than this share a message of at most ...
CACHED_BYTES = (2 << 20) + (64 << 10)  # ... so many bytes: it passes through several buffers at either end, and a core's cache holds some of them


class MessageWindow(Window):
    """See `echo_net.channel.window.Window`.

    The gatherer fills the `bytes` object that gRPC gets, and the window keeps the same object until it is acknowledged. Only full pieces are sent
    so. In other pieces, the samples of the second leaf do not follow those of the first directly; a link that sends such pieces has time to join them.
    """

    gathered_bytes = PIECE_BYTES - HEADER_BYTES
    head_bytes = ENVELOPE_BYTES + HEADER_BYTES
    parts = 2  # an acknowledgement takes as long as a message

    def __init__(self, flattener: Flattener, max_bytes: int, most: int, coalesce_bytes: int) -> None:
        if flattener.sample_bytes > LARGE_BYTES:
            coalesce_bytes = min(coalesce_bytes, CACHED_BYTES)
        super().__init__(flattener, max_bytes, most, coalesce_bytes)

    def encode(self, entries: list[Entry], flags: int) -> Iterator[Any]:
        entry = entries[0]
        length = HEADER_BYTES + entry.count * self.sample_bytes
        if len(entries) == 1 and length <= PIECE_BYTES and isinstance(entry.data, Chunk):
            header = pack_header(Kind.DATA, flags=flags, count=entry.count, seq=entry.first, length=length - HEADER_BYTES)
            whole = entry.data.framed(envelope(length) + header)
            if whole is not None:
                yield EncodedMessage(whole)
                return
        yield from super().encode(entries, flags)


class GrpcUplink(Uplink):
    """See `echo_net.channel.uplink.Uplink`."""

    def make_window(self) -> Window:
        options = self.options
        return MessageWindow(self.spec.flattener, options.window_bytes, options.max_inflight_msgs, options.max_coalesced_bytes)


class GrpcConnection(ChannelConnection):
    """See `echo_net.channel.connection.ChannelConnection`."""

    uplink_type = GrpcUplink

"""Encodes the messages of echo.proto by hand. They have one field of raw bytes, and no object is made for it.

Messages of generated clients in other languages are read too, with fields in any order, unknown fields, or no field at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from echo_core.base.errors import ProtocolError
from echo_core.wire.protocol import Buffer

__all__ = ["ENVELOPE_BYTES", "MAX_MESSAGE_BYTES", "EncodedMessage", "envelope", "health_request", "health_response", "pack", "unpack"]

MAX_MESSAGE_BYTES = 4 << 20  # gRPC's own limit, which clients of other languages keep; an unauthenticated client cannot make us allocate more
ENVELOPE_BYTES = 6  # length of `envelope`
PIECE_BYTES = MAX_MESSAGE_BYTES - 16  # most data of one message; a larger frame travels in pieces

DATA_TAG = 0x0A  # field 1, length-delimited
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def envelope(size: int) -> bytes:
    """The bytes that make a message when they stand before `size` bytes of data (at most `PIECE_BYTES`). Their length is always the same."""
    # The number has leading zeros, which readers accept. protobuf's readers reject a length of more than five bytes as corrupt.
    return bytes((DATA_TAG, *(size >> 7 * i & 0x7F | 0x80 for i in range(4)), 0))


class EncodedMessage:
    """A message that is already complete, and takes the place of a frame's buffers."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)


def pack(buffers: Sequence[Buffer]) -> Iterator[bytes]:
    """The buffers' bytes, one after another, as messages of at most `MAX_MESSAGE_BYTES`."""
    alone: object = buffers[0] if len(buffers) == 1 else None
    if isinstance(alone, EncodedMessage):
        yield alone.data
        return
    size = sum(map(len, buffers))
    if size <= PIECE_BYTES:
        if size:
            yield b"".join((b"\x0a", _varint(size), *buffers))
        return
    for piece in _pieces(buffers):
        yield from pack(piece)


def _pieces(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    piece: list[Buffer] = []
    room = PIECE_BYTES
    for buffer in buffers:
        rest = memoryview(buffer)
        while len(rest) > room:
            piece.append(rest[:room])
            rest = rest[room:]
            yield piece
            piece, room = [], PIECE_BYTES
        piece.append(rest)
        room -= len(rest)
    yield piece


def unpack(message: bytes) -> memoryview:
    """The `data` of a message, not copied. Raises ProtocolError if it is not a valid message."""
    data = memoryview(message)[:0]
    for tag, value in _fields(message):
        if tag == DATA_TAG:
            data = value  # if the field comes more than once, the last one counts
    return data


def _fields(message: bytes) -> Iterator[tuple[int, memoryview]]:
    """(tag, content) of every field; the content is empty unless the field is length-delimited."""
    view, at, end = memoryview(message), 0, len(message)
    while at < end:
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if tag >> 3 == 0:
            raise ProtocolError("a gRPC message with a field number 0")
        if kind == BYTES:
            size, at = _read_varint(message, at)
            if size > end - at:
                raise ProtocolError("a gRPC message whose data is longer than the message")
            yield tag, view[at : at + size]
            at += size
            continue
        if kind == VARINT:
            _, at = _read_varint(message, at)
        elif kind in (FIXED32, FIXED64):
            at += 4 if kind == FIXED32 else 8
        else:
            raise ProtocolError(f"a gRPC message with a field of wire type {kind}")
        if at > end:
            raise ProtocolError("a gRPC message that ends in the middle of a field")
        yield tag, view[:0]


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(10):
        if at + i >= len(message):
            raise ProtocolError("a gRPC message that ends in the middle of a number")
        byte = message[at + i]
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise ProtocolError("a gRPC message with a number of more than ten bytes")


def health_request(message: bytes) -> str:
    """The service that a grpc.health.v1.HealthCheckRequest asks about."""
    return bytes(unpack(message)).decode("utf-8", "replace")  # field 1 there too


def health_response(status: int) -> bytes:
    """grpc.health.v1.HealthCheckResponse: 1 SERVING, 2 NOT_SERVING, 3 SERVICE_UNKNOWN."""
    return bytes((0x08, status))

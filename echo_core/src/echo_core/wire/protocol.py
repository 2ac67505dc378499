"""The byte stream after the handshake: frames, their limits, and what their payloads hold.

Every frame is a 24-byte little-endian header and `length` bytes of payload:

    kind u8 | flags u8 | table u16 (0) | count u32 | seq u64 | length u64

| kind      | way               | seq                | payload                                    |
|-----------|-------------------|--------------------|--------------------------------------------|
| DATA      | worker to learner | its first sample   | for each leaf of the spec, `count` samples |
| ACK       | learner to worker | samples committed  | none                                       |
| CONTROL   | both              | request id         | u32 n, n bytes of JSON, a raw blob         |
| WEIGHTS   | learner to worker | version            | one chunk of: u32 m, m bytes meta, payload |
| RECEIPT   | worker to learner | version held whole | digest u64                                 |
| SUBSCRIBE | worker to learner | version held or 0  | none                                       |
| PING      | both              | echoed in reply    | none                                       |
| BYE       | both              | 0                  | UTF-8 reason                               |

Samples of a session are numbered from 1, and ACK is cumulative: `seq` samples of the session lie
in the learner's store. The first frame of a learner is an ACK, the point to resume from. If it is
ahead of every number the worker has given out, the worker's next sample is number `seq + 1`.
The `count` of an ACK says how many connections bring samples at this time, 0 if that is not
known: workers on the learner's machine keep less unacknowledged when they are many.
A DATA frame with the flag MORE need not be acknowledged for its own sake: another one follows for
certain, and one without the flag comes before the worker runs out of room.

The JSON of a CONTROL request is `{"op": str, "body": object}`, of its answer (flag REPLY)
`{"body": object}` or `{"error": text, "type": name of a class in echo_core.base.errors}`.

`parse_header` refuses whatever breaks a limit, before anything is allocated for the payload.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..base import errors
from ..base.errors import EchoError, ProtocolError

if TYPE_CHECKING:
    import numpy as np

    from .weights import PackedWeights

__all__ = [
    "FIRST",
    "HEADER",
    "HEADER_BYTES",
    "LAST",
    "MAX_CHUNK_BYTES",
    "MAX_CONTROL_BYTES",
    "MAX_DATA_BYTES",
    "MAX_DATA_COUNT",
    "MAX_NUMBER",
    "MAX_REASON_BYTES",
    "MORE",
    "PROTOCOL_VERSION",
    "REPLY",
    "TO_LEARNER",
    "TO_WORKER",
    "U32",
    "U64",
    "Blob",
    "Buffer",
    "Header",
    "Kind",
    "WeightsAssembler",
    "dump_json",
    "frame",
    "max_count",
    "pack_error",
    "pack_header",
    "pack_reply",
    "pack_request",
    "parse_header",
    "parse_json",
    "parse_reply",
    "parse_request",
    "reply_frame",
    "reply_pieces",
    "weights_frames",
]

Buffer = bytes | bytearray | memoryview
Blob = Buffer | Sequence[Buffer]  # of an answer: one after another

PROTOCOL_VERSION: Final = 2
HEADER: Final = Struct("<BBHIQQ")
HEADER_BYTES: Final = HEADER.size  # 24
U32: Final = Struct("<I")
U64: Final = Struct("<Q")

MAX_DATA_BYTES: Final = 16 << 20  # of one DATA payload, unless a single sample is larger
MAX_DATA_COUNT: Final = 65536  # samples of one DATA frame
MAX_CONTROL_BYTES: Final = 1 << 20
MAX_CHUNK_BYTES: Final = 256 << 10  # of one WEIGHTS frame: an ACK never waits longer than that
MAX_REASON_BYTES: Final = 1 << 10
MAX_NUMBER: Final = (1 << 63) - 1  # of samples, versions and request ids


class Kind(IntEnum):
    DATA = 1
    ACK = 2
    CONTROL = 3
    WEIGHTS = 4
    RECEIPT = 5
    SUBSCRIBE = 6
    PING = 7
    BYE = 8


REPLY: Final = 1  # CONTROL, PING
LAST: Final = 1  # WEIGHTS
FIRST: Final = 2  # WEIGHTS
MORE: Final = 1  # DATA

TO_LEARNER: Final = frozenset(
    {Kind.DATA, Kind.CONTROL, Kind.RECEIPT, Kind.SUBSCRIBE, Kind.PING, Kind.BYE}
)
TO_WORKER: Final = frozenset({Kind.ACK, Kind.CONTROL, Kind.WEIGHTS, Kind.PING, Kind.BYE})

_FLAGS: Final = {Kind.DATA: MORE, Kind.CONTROL: REPLY, Kind.PING: REPLY, Kind.WEIGHTS: FIRST | LAST}
_LENGTHS: Final = {  # least and most bytes of payload; DATA depends on the spec
    Kind.ACK: (0, 0),
    Kind.CONTROL: (U32.size, MAX_CONTROL_BYTES),
    Kind.WEIGHTS: (1, MAX_CHUNK_BYTES),
    Kind.RECEIPT: (U64.size, U64.size),
    Kind.SUBSCRIBE: (0, 0),
    Kind.PING: (0, 0),
    Kind.BYE: (0, MAX_REASON_BYTES),
}


class Header(NamedTuple):
    kind: Kind
    flags: int
    count: int  # type: ignore[assignment]  # of samples; tuple.count is not missed
    seq: int
    length: int


def pack_header(
    kind: int, *, flags: int = 0, count: int = 0, seq: int = 0, length: int = 0
) -> bytes:
    """The 24 bytes before a payload of `length` bytes."""
    return HEADER.pack(kind, flags, 0, count, seq, length)


def parse_header(data: Buffer, sample_bytes: int, allowed: frozenset[Kind]) -> Header:
    """Read and check the first 24 bytes of `data`.

    `allowed` is TO_LEARNER or TO_WORKER, as seen by the end that receives. Raises ProtocolError
    for anything that the table above does not permit.
    """
    number, flags, table, count, seq, length = HEADER.unpack_from(data)
    try:
        kind = Kind(number)
    except ValueError:
        raise ProtocolError(f"frame of unknown kind {number}") from None
    if kind not in allowed:
        raise ProtocolError(f"a {kind.name} frame cannot travel this way")
    if flags & ~_FLAGS.get(kind, 0) or table:
        raise ProtocolError(f"{kind.name} frame with unknown flags {flags:#x} or table {table}")
    if seq > MAX_NUMBER:
        raise ProtocolError(f"{kind.name} frame with number {seq}, beyond 2**63 - 1")
    if kind is Kind.DATA:
        _check_data(count, seq, length, sample_bytes)
    else:
        least, most = _LENGTHS[kind]
        if (count and kind is not Kind.ACK) or not least <= length <= most:
            raise ProtocolError(
                f"{kind.name} frame of {length} bytes and count {count};"
                f" expected {least} to {most} bytes and count 0"
            )
    return Header(kind, flags, count, seq, length)


def _check_data(count: int, seq: int, length: int, sample_bytes: int) -> None:
    if not 1 <= count <= MAX_DATA_COUNT or seq < 1 or seq + count > MAX_NUMBER:
        raise ProtocolError(f"DATA frame of {count} samples from number {seq}")
    if length != count * sample_bytes:
        raise ProtocolError(
            f"DATA frame of {length} bytes for {count} samples of {sample_bytes} bytes"
        )
    if length > max(MAX_DATA_BYTES, sample_bytes):
        raise ProtocolError(f"DATA frame of {length} bytes, more than {MAX_DATA_BYTES}")


def max_count(sample_bytes: int) -> int:
    """The most samples of `sample_bytes` bytes that one DATA frame may carry, at least 1."""
    return max(1, min(MAX_DATA_COUNT, MAX_DATA_BYTES // max(1, sample_bytes)))


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, seq: int = 0) -> bytes:
    """A whole small frame (everything but DATA and WEIGHTS) as one bytes object."""
    return pack_header(kind, flags=flags, seq=seq, length=len(payload)) + payload


# ----------------------------------------------------------------------------- JSON and CONTROL


def dump_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def parse_json(data: Buffer, what: str) -> dict[str, Any]:
    """`data` as a JSON object; ProtocolError naming `what` for anything else, however nested."""
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ProtocolError(f"{what} is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{what} is a JSON {type(value).__name__}, expected an object")
    return value


def _control_pieces(message: dict[str, Any], blob: Blob) -> list[Buffer]:
    """The payload of a CONTROL frame as the buffers to send one after another; none is copied."""
    text = dump_json(message)
    pieces: list[Buffer] = [U32.pack(len(text)) + text]
    for piece in [blob] if isinstance(blob, (bytes, bytearray, memoryview)) else blob:
        pieces.append(piece.cast("B") if isinstance(piece, memoryview) else piece)  # so that its length is its bytes
    if (size := sum(map(len, pieces))) > MAX_CONTROL_BYTES:
        raise ValueError(
            f"control message of {size} bytes; at most {MAX_CONTROL_BYTES} travel at once"
        )
    return pieces


def _parse_control(payload: Buffer) -> tuple[dict[str, Any], memoryview]:
    (n,) = U32.unpack_from(payload)
    if U32.size + n > len(payload):
        raise ProtocolError(f"CONTROL frame whose JSON of {n} bytes is longer than its payload")
    text = memoryview(payload)[U32.size :]
    return parse_json(text[:n], "CONTROL message"), text[n:]


def pack_request(op: str, body: dict[str, Any], blob: Buffer = b"") -> bytes:
    """Payload of a CONTROL request. ValueError if it is larger than MAX_CONTROL_BYTES."""
    return b"".join(_control_pieces({"op": op, "body": body}, blob))


def parse_request(payload: Buffer) -> tuple[str, dict[str, Any], bytes]:
    """(op, body, blob) of a CONTROL request; ProtocolError if it is none."""
    message, blob = _parse_control(payload)
    op, body = message.get("op"), message.get("body", {})
    if not isinstance(op, str) or not isinstance(body, dict):
        raise ProtocolError('CONTROL request without "op" text and "body" object')
    return op, body, bytes(blob)


def pack_reply(body: dict[str, Any], blob: Blob = b"") -> bytes:
    """Payload of the answer to a CONTROL request."""
    return b"".join(reply_pieces(body, blob))


def reply_pieces(body: dict[str, Any], blob: Blob = b"") -> list[Buffer]:
    """The same as the buffers to send one after another, which must stay unchanged until then."""
    return _control_pieces({"body": body}, blob)


def reply_frame(number: int, pieces: list[Buffer]) -> list[Buffer]:
    """The whole frame that answers request `number`, likewise, for a payload in pieces."""
    size = sum(map(len, pieces))
    return [pack_header(Kind.CONTROL, flags=REPLY, seq=number, length=size), *pieces]


def pack_error(error: BaseException) -> bytes:
    """Payload that reports `error` as text; never the object, never a traceback."""
    text = str(error) if isinstance(error, EchoError) else f"{type(error).__name__}: {error}"
    return b"".join(_control_pieces({"error": text[:65536], "type": type(error).__name__}, b""))


def parse_reply(payload: Buffer) -> tuple[dict[str, Any], memoryview]:
    """(body, blob) of an answer; the blob is a part of `payload`. An error reported by the other end
    is raised: as the class of `echo_core.base.errors` it names, or as EchoError."""
    message, blob = _parse_control(payload)
    if "error" in message:
        known = {name: getattr(errors, name) for name in errors.__all__ if name[0].isupper()}
        raise known.get(str(message.get("type")), EchoError)(str(message["error"]))
    body = message.get("body")
    if not isinstance(body, dict):
        raise ProtocolError('CONTROL answer without a "body" object')
    return body, blob


# -------------------------------------------------------------------------------------- WEIGHTS


def weights_frames(weights: PackedWeights) -> Iterator[list[Buffer]]:
    """The WEIGHTS frames of one version, each as the buffers to send one after another.

    The payload is sliced, never copied; the arrays must stay unchanged while frames are taken.
    """
    head = memoryview(U32.pack(len(weights.meta)) + weights.meta)
    body = weights.payload.data  # uint8, so its length is its bytes
    total = len(head) + len(body)
    for start in range(0, total, MAX_CHUNK_BYTES):
        stop = min(start + MAX_CHUNK_BYTES, total)
        flags = (FIRST if start == 0 else 0) | (LAST if stop == total else 0)
        pieces: list[Buffer] = [
            pack_header(Kind.WEIGHTS, flags=flags, seq=weights.version, length=stop - start)
        ]
        if start < len(head):
            pieces.append(head[start:stop])
        if stop > len(head):
            pieces.append(body[max(0, start - len(head)) : stop - len(head)])
        yield pieces


class WeightsAssembler:
    """Puts the chunks of a version together again; every connection needs a new one.

    A version is returned whole or not at all: chunks out of order or of two versions mixed are
    a ProtocolError. The chunks are kept (not copied) until the last.
    """

    def __init__(self) -> None:
        self._version = 0
        self._chunks: list[Buffer] = []

    def add(self, header: Header, chunk: Buffer) -> tuple[int, bytes, np.ndarray] | None:
        """Take one chunk; (version, meta JSON, payload) once that was the last, else None.

        The payload is a uint8 array of its own that begins at a multiple of 64 bytes.
        """
        if header.flags & FIRST:
            if self._chunks:
                raise ProtocolError(f"weights {self._version} interrupted by {header.seq}")
            self._version = header.seq
        elif not self._chunks or header.seq != self._version:
            raise ProtocolError(f"chunk of weights {header.seq} without its beginning")
        self._chunks.append(chunk)
        if not header.flags & LAST:
            return None
        chunks, self._chunks = self._chunks, []
        return header.seq, *_join(header.seq, chunks)


def _join(version: int, chunks: list[Buffer]) -> tuple[bytes, np.ndarray]:
    from .weights import ALIGNMENT, MAX_META_BYTES, aligned_bytes

    size = sum(map(len, chunks))
    start = b"".join(chunks[: U32.size])[: U32.size]  # no chunk is empty
    begin = U32.size + U32.unpack(start.ljust(U32.size, b"\xff"))[0]  # of the payload
    if begin > min(size, U32.size + MAX_META_BYTES):
        raise ProtocolError(f"weights {version} without a whole description")
    shift = -begin % ALIGNMENT  # so that the payload is what lies aligned
    memory = aligned_bytes(shift + size)
    whole = memory[shift:]
    position = 0
    for chunk in chunks:
        whole[position : position + len(chunk)] = memoryview(chunk)
        position += len(chunk)
    memory.flags.writeable = False
    return whole[U32.size : begin].tobytes(), memory[shift + begin :]

"""The byte stream after the handshake: frames, their limits, and the contents of their payloads.

Every frame has a 24-byte little-endian header, followed by `length` bytes of payload:

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

The samples of a session are numbered from 1. An ACK is cumulative: `seq` samples of the session are
in the learner's store. The learner's first frame is an ACK, which says where to resume. If its `seq`
is above every number that the worker has used, the worker's next sample gets number `seq + 1`.
The `count` of an ACK says how many connections send samples at this time, or 0 if that is not
known; if there are many, workers on the learner's machine keep fewer unacknowledged samples.
A learner's BYE with the flag ENDED says that the job has ended, so the worker does not connect again.
A DATA frame with the flag MORE need not be acknowledged immediately: another frame always follows,
and a frame without the flag comes before the worker's window is full.
In a DATA frame with the flag LABELS, 16 bytes for each sample follow the leaves: its priority and
policy version (labels.py). Only a learner that said in the handshake that it takes labels gets such a frame.

The first SUBSCRIBE of a connection asks for weights, and later ones change nothing of that. Each says by its flag
WAITING whether a call of the worker waits for weights now. The learner only shows this.

The JSON of a CONTROL request is `{"op": str, "body": object}`. The JSON of its answer (flag REPLY) is
`{"body": object}` or `{"error": text, "type": name of a class in echo_core.base.errors}`.

`parse_header` refuses a frame that breaks a limit before memory is allocated for the payload.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..base import errors
from ..base.errors import EchoError, ProtocolError
from ..base.foreign_text import escaped

if TYPE_CHECKING:
    import numpy as np

    from .weights import PackedWeights

__all__ = [
    "CLOSING",
    "DRAINING",
    "ENDED",
    "FIRST",
    "HEADER",
    "HEADER_BYTES",
    "JOB_ENDED",
    "LABELS",
    "LABEL_BYTES",
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
    "WAITING",
    "Blob",
    "Buffer",
    "Farewell",
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
Blob = Buffer | Sequence[Buffer]  # in an answer, several buffers follow one another

PROTOCOL_VERSION: Final = 6
HEADER: Final = Struct("<BBHIQQ")
HEADER_BYTES: Final = HEADER.size  # 24
U32: Final = Struct("<I")
U64: Final = Struct("<Q")

MAX_DATA_BYTES: Final = 16 << 20  # the most bytes of the samples of one DATA frame without labels, unless a single sample is larger
LABEL_BYTES: Final = 16  # of one sample
MAX_DATA_COUNT: Final = 65536  # the most samples of one DATA frame
MAX_CONTROL_BYTES: Final = 1 << 20
MAX_CHUNK_BYTES: Final = 256 << 10  # the most bytes of one WEIGHTS frame; an ACK never waits for more than these
MAX_REASON_BYTES: Final = 1 << 10
MAX_NUMBER: Final = (1 << 63) - 1  # the largest number of a sample, version or request


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
LABELS: Final = 2  # DATA
ENDED: Final = 1  # BYE of a learner
WAITING: Final = 1  # SUBSCRIBE

TO_LEARNER: Final = frozenset(
    {Kind.DATA, Kind.CONTROL, Kind.RECEIPT, Kind.SUBSCRIBE, Kind.PING, Kind.BYE}
)
TO_WORKER: Final = frozenset({Kind.ACK, Kind.CONTROL, Kind.WEIGHTS, Kind.PING, Kind.BYE})

_FLAGS: Final = {Kind.DATA: MORE | LABELS, Kind.CONTROL: REPLY, Kind.PING: REPLY, Kind.WEIGHTS: FIRST | LAST, Kind.SUBSCRIBE: WAITING}
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
    count: int  # type: ignore[assignment]  # of samples; it hides tuple.count, which is not needed
    seq: int
    length: int


def pack_header(
    kind: int, *, flags: int = 0, count: int = 0, seq: int = 0, length: int = 0
) -> bytes:
    """The 24-byte header of a payload of `length` bytes."""
    return HEADER.pack(kind, flags, 0, count, seq, length)


def parse_header(data: Buffer, sample_bytes: int, allowed: frozenset[Kind]) -> Header:
    """Read and check the first 24 bytes of `data`.

    `allowed` is TO_LEARNER or TO_WORKER: the frames that the receiving end accepts. Raises ProtocolError
    for any frame that the table above does not permit.
    """
    number, flags, table, count, seq, length = HEADER.unpack_from(data)
    try:
        kind = Kind(number)
    except ValueError:
        raise ProtocolError(f"received a frame of unknown kind {number}") from None
    if kind not in allowed:
        raise ProtocolError(f"received a {kind.name} frame, which may travel only in the other direction")
    if flags & ~(ENDED if kind is Kind.BYE and Kind.ACK in allowed else _FLAGS.get(kind, 0)) or table:
        raise ProtocolError(f"{kind.name} frame with unknown flags {flags:#x} or table {table}")
    if seq > MAX_NUMBER:
        raise ProtocolError(f"{kind.name} frame with number {seq}, beyond 2**63 - 1")
    if kind is Kind.DATA:
        _check_data(count, seq, length, sample_bytes, LABEL_BYTES if flags & LABELS else 0)
    else:
        least, most = _LENGTHS[kind]
        if (count and kind is not Kind.ACK) or not least <= length <= most:
            raise ProtocolError(
                f"{kind.name} frame of {length} bytes and count {count};"
                f" expected {least} to {most} bytes and count 0"
            )
    return Header(kind, flags, count, seq, length)


def _check_data(count: int, seq: int, length: int, sample_bytes: int, label_bytes: int) -> None:
    if not 1 <= count <= MAX_DATA_COUNT or seq < 1 or seq + count > MAX_NUMBER:
        raise ProtocolError(f"DATA frame of {count} samples from number {seq}")
    if length != count * (sample_bytes + label_bytes):
        labels = f" and labels of {label_bytes} bytes each" if label_bytes else ""
        raise ProtocolError(
            f"DATA frame of {length} bytes for {count} samples of {sample_bytes} bytes{labels}"
        )
    if count * sample_bytes > max(MAX_DATA_BYTES, sample_bytes):
        raise ProtocolError(f"DATA frame of {length} bytes, more than {MAX_DATA_BYTES}")


def max_count(sample_bytes: int) -> int:
    """The most samples of `sample_bytes` bytes that one DATA frame may carry, at least 1."""
    return max(1, min(MAX_DATA_COUNT, MAX_DATA_BYTES // max(1, sample_bytes)))


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, seq: int = 0) -> bytes:
    """A whole small frame (everything but DATA and WEIGHTS) as one bytes object."""
    return pack_header(kind, flags=flags, seq=seq, length=len(payload)) + payload


class Farewell(NamedTuple):
    """What a listener that closes tells its clients: whether the learner may come back.

    Attributes:
        text: the reason, for people.
        code: of the refusal of a client that is in its handshake.
        flags: of the BYE frame for a client that is connected.
    """

    text: str
    code: str
    flags: int

    def frame(self) -> bytes:
        """The BYE frame."""
        return frame(Kind.BYE, self.text.encode(), flags=self.flags)


CLOSING: Final = Farewell("the learner is closing", "shutdown", 0)
DRAINING: Final = Farewell("the learner is draining", "shutdown", 0)
JOB_ENDED: Final = Farewell("the learner has ended the job", "ended", ENDED)


# ----------------------------------------------------------------------------- JSON and CONTROL


_encode_json = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make an encoder for each message
_decode_json = json.JSONDecoder()


def dump_json(value: Any) -> bytes:
    return _encode_json(value).encode("ascii")


def parse_json(data: Buffer, what: str) -> dict[str, Any]:
    """Read `data` as a JSON object. Raises ProtocolError with `what` for anything else, also if it is nested too deeply."""
    try:
        text = str(data, "utf-8")
        value, end = _decode_json.raw_decode(text) if text[:1] == "{" else (None, -1)
        if end != len(text):  # white space around it, which only other programs write; or no object
            value = _decode_json.decode(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ProtocolError(f"{what} is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{what} is a JSON {type(value).__name__}, but must be an object")
    return value


def _control_pieces(message: dict[str, Any], blob: Blob) -> list[Buffer]:
    """The payload of a CONTROL frame as buffers to send one after another; none is copied."""
    text = dump_json(message)
    pieces: list[Buffer] = [U32.pack(len(text)) + text]
    for piece in [blob] if isinstance(blob, (bytes, bytearray, memoryview)) else blob:
        pieces.append(piece.cast("B") if isinstance(piece, memoryview) else piece)  # so that its length is its number of bytes
    if (size := sum(map(len, pieces))) > MAX_CONTROL_BYTES:
        raise ValueError(
            f"a control message has {size} bytes; at most {MAX_CONTROL_BYTES} are allowed"
        )
    return pieces


def _parse_control(payload: Buffer) -> tuple[dict[str, Any], memoryview]:
    (n,) = U32.unpack_from(payload)
    if U32.size + n > len(payload):
        raise ProtocolError(f"CONTROL frame whose JSON of {n} bytes is longer than its payload")
    text = memoryview(payload)[U32.size :]
    return parse_json(text[:n], "CONTROL message"), text[n:]


def pack_request(op: str, body: dict[str, Any], blob: Buffer = b"") -> bytes:
    """The payload of a CONTROL request. Raises ValueError if it is larger than MAX_CONTROL_BYTES."""
    return b"".join(_control_pieces({"op": op, "body": body}, blob))


def parse_request(payload: Buffer) -> tuple[str, dict[str, Any], bytes]:
    """The (op, body, blob) of a CONTROL request. Raises ProtocolError if the payload is not a CONTROL request."""
    message, blob = _parse_control(payload)
    op, body = message.get("op"), message.get("body", {})
    if not isinstance(op, str) or not isinstance(body, dict):
        raise ProtocolError('CONTROL request without "op" text and "body" object')
    return op, body, bytes(blob)


def pack_reply(body: dict[str, Any], blob: Blob = b"") -> bytes:
    """The payload of the answer to a CONTROL request."""
    return b"".join(reply_pieces(body, blob))


def reply_pieces(body: dict[str, Any], blob: Blob = b"") -> list[Buffer]:
    """The payload of an answer as buffers to send one after another, which must stay unchanged until they are sent."""
    return _control_pieces({"body": body}, blob)


def reply_frame(number: int, pieces: list[Buffer]) -> list[Buffer]:
    """The whole frame that answers request `number`, as buffers to send one after another."""
    size = sum(map(len, pieces))
    return [pack_header(Kind.CONTROL, flags=REPLY, seq=number, length=size), *pieces]


def pack_error(error: BaseException) -> bytes:
    """A payload that reports `error` as text, without the object or a traceback."""
    text = str(error) if isinstance(error, EchoError) else f"{type(error).__name__}: {error}"
    return b"".join(_control_pieces({"error": text[:65536], "type": type(error).__name__}, b""))


def parse_reply(payload: Buffer) -> tuple[dict[str, Any], memoryview]:
    """The (body, blob) of an answer; the blob is a part of `payload`. If the other end reports an error,
    it is raised as the class of `echo_core.base.errors` that it names, or as EchoError."""
    message, blob = _parse_control(payload)
    if "error" in message:
        known = {name: getattr(errors, name) for name in errors.__all__ if name[0].isupper()}
        raise known.get(str(message.get("type")), EchoError)(escaped(str(message["error"])))
    body = message.get("body")
    if not isinstance(body, dict):
        raise ProtocolError('CONTROL answer without a "body" object')
    return body, blob


# -------------------------------------------------------------------------------------- WEIGHTS


def weights_frames(weights: PackedWeights) -> Iterator[list[Buffer]]:
    """The WEIGHTS frames of one version, each as buffers to send one after another.

    The payload is sliced, never copied. The arrays must stay unchanged while frames are read from this iterator.
    """
    head = memoryview(U32.pack(len(weights.meta)) + weights.meta)
    body = weights.payload.data  # it is uint8, so its length is its number of bytes
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
    """Joins the chunks of a version; every connection needs a new assembler.

    A version is returned as a whole or not at all: chunks in a wrong order, or of two mixed versions,
    raise ProtocolError. The chunks are kept (not copied) until the last one arrives.
    """

    def __init__(self) -> None:
        self._version = 0
        self._chunks: list[Buffer] = []

    def add(self, header: Header, chunk: Buffer) -> tuple[int, bytes, np.ndarray] | None:
        """Add one chunk; returns (version, meta JSON, payload) after the last chunk, and None otherwise.

        The payload is a new uint8 array that begins at a multiple of 64 bytes.
        """
        if header.flags & FIRST:
            if self._chunks:
                raise ProtocolError(f"the chunks of weights {self._version} were interrupted by weights {header.seq}")
            self._version = header.seq
        elif not self._chunks or header.seq != self._version:
            raise ProtocolError(f"received a chunk of weights {header.seq} without the first one")
        self._chunks.append(chunk)
        if not header.flags & LAST:
            return None
        chunks, self._chunks = self._chunks, []
        return header.seq, *_join(header.seq, chunks)


def _join(version: int, chunks: list[Buffer]) -> tuple[bytes, np.ndarray]:
    from .weights import ALIGNMENT, MAX_META_BYTES, aligned_bytes

    size = sum(map(len, chunks))
    start = b"".join(chunks[: U32.size])[: U32.size]  # no chunk is empty
    begin = U32.size + U32.unpack(start.ljust(U32.size, b"\xff"))[0]  # where the payload begins
    if begin > min(size, U32.size + MAX_META_BYTES):
        raise ProtocolError(f"received weights {version} with an incomplete description")
    shift = -begin % ALIGNMENT  # so that the payload is aligned
    memory = aligned_bytes(shift + size)
    whole = memory[shift:]
    position = 0
    for chunk in chunks:
        whole[position : position + len(chunk)] = memoryview(chunk)
        position += len(chunk)
    memory.flags.writeable = False
    return whole[U32.size : begin].tobytes(), memory[shift + begin :]

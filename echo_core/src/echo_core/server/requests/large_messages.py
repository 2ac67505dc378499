"""The server's end of requests and answers that are larger than a message, and so travel in pieces (client/requests.py is the other end).

A client sends the blob of a large request by several requests "part", and names their number in the request itself. A large answer is kept
here: its first piece is the answer, and the client fetches the others by requests "piece".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ...base.errors import EchoError
from ...wire.blobs import MAX_BYTES, PARTS, PIECES
from ...wire.protocol import MAX_CONTROL_BYTES, U32, dump_json

if TYPE_CHECKING:
    from ...wire.later import Answer
    from ...wire.peer import Peer
    from ...wire.protocol import Blob, Buffer
    from ..state import ServerState

__all__ = ["fitting", "part", "piece", "taken", "whole"]

JSON_ROOM = 64  # bytes that surround the body in a message
MOST_GROWTH = 12  # JSON has at most so many bytes for each character of a Python text


def fitting(server: ServerState, peer: Peer, body: dict[str, Any], blob: Blob) -> Answer:
    """An answer as it is, or the first piece of a large one, which is then kept."""
    buffers: list[Buffer] = [blob] if isinstance(blob, (bytes, bytearray, memoryview)) else list(blob)
    size = len(blob) if type(blob) is bytes else sum(memoryview(buffer).nbytes for buffer in buffers)
    if size + MOST_GROWTH * len(repr(body)) + JSON_ROOM <= MAX_CONTROL_BYTES:  # cheaper than to write the JSON twice
        return body, blob
    text = dump_json({"body": body})
    if size + len(text) + JSON_ROOM <= MAX_CONTROL_BYTES:
        return body, blob
    buffers = [U32.pack(len(text)) + text, *(memoryview(buffer).cast("B") for buffer in buffers)]
    size += U32.size + len(text)
    number = next(server._answer_numbers)
    server.held.make_room(peer, size)
    server.held.keep(peer, ("answer", number), buffers, size)
    return {PIECES: number, "bytes": size}, _cut(buffers, 0, MAX_BYTES)


def piece(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """The bytes of a kept answer from `start` on. The answer is dropped when its last bytes are returned."""
    number, start = body.get("number"), body.get("start")
    if type(number) is not int or type(start) is not int or start < 0:
        raise EchoError("a piece of an answer needs two whole numbers, number and start")
    buffers = server.held.get(peer, ("answer", number))
    if buffers is None:
        raise EchoError("the server has dropped the rest of this answer, because it was not fetched in time or others needed the memory; ask again")
    if start + MAX_BYTES >= sum(map(len, buffers)):
        server.held.drop(peer, ("answer", number))
    return {}, _cut(buffers, start, MAX_BYTES)


def part(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """Take a part of the blob of a large request; parts come in order."""
    number, start, total = (body.get(name) for name in ("number", "start", "bytes"))
    if type(number) is not int or type(start) is not int or type(total) is not int or not 0 <= start < start + len(blob) <= total:
        raise EchoError("a part of a request needs whole numbers as number, start and bytes, and its bytes must lie within the request")
    key = ("request", number)
    if start == 0:
        server.held.make_room(peer, total)
        server.held.keep(peer, key, (bytearray(), total), total)
    data, promised = server.held.get(peer, key) or (None, 0)
    if data is None or promised != total or len(data) != start:
        raise EchoError(GONE)
    data += blob
    return {}, b""


GONE = "the server has not all parts of this request, because they did not come in time or others needed the memory; send it again"


def whole(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> bytes:
    """The blob of a request, which may have come in parts before."""
    if PARTS not in body:
        return blob
    data, total = (type(body[PARTS]) is int and server.held.get(peer, ("request", body[PARTS]))) or (None, 0)
    if data is None or len(data) != total:
        raise EchoError(GONE)
    return cast(bytes, data)


def taken(server: ServerState, peer: Peer, body: dict[str, Any]) -> None:
    """The request was carried out, or has failed: its parts are dropped."""
    server.held.drop(peer, ("request", body.get(PARTS)))


def _cut(buffers: list[Buffer], start: int, n: int) -> list[Buffer]:
    """`n` bytes from `start` on, or as many as there are, as views."""
    found: list[Buffer] = []
    for buffer in buffers:
        view = memoryview(buffer)[start : start + n]
        if view.nbytes:
            found.append(view)
        n -= view.nbytes
        start = max(0, start - len(buffer))
        if n <= 0:
            break
    return found

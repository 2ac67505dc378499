"""A client's requests. One that is larger than a message, or whose answer is, travels in pieces (server/requests/large_messages.py is the other end)."""

from __future__ import annotations

import itertools
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from ..base.errors import ConnectionClosedError, ProtocolError
from ..base.memory.recycled import empty
from ..wire.blobs import MAX_BYTES, PARTS, PIECES
from ..wire.protocol import parse_reply

if TYPE_CHECKING:
    import numpy as np

    from ..wire.protocol import Buffer
    from ..wire.transport import Connection, Pending

__all__ = ["Requests"]

AHEAD = 2  # pieces under way; with more, data in the processor's caches would be overwritten before it is read

_numbers = itertools.count(1)


class Requests:
    """Sends requests over one connection. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._ask = connection.ask
        self._request = connection.request
        self._stats = connection.stats

    def reconnects(self) -> int:
        """How often the connection was lost and stood again."""
        return int(self._stats()["reconnects"])

    def ask(self, op: str, body: dict[str, Any], blob: Buffer = b"") -> Pending:
        """Like `Connection.ask`, for a request and an answer of any size."""
        if len(blob) > MAX_BYTES:
            return partial(self._after_upload, op, body, blob)
        return partial(self._whole, self._ask(op, body, blob))  # type: ignore[arg-type]

    def request(self, op: str, body: dict[str, Any], blob: Buffer = b"", timeout: float | None = None) -> tuple[dict[str, Any], Buffer]:
        """`ask`, and wait for the answer."""
        if len(blob) > MAX_BYTES:
            return self.ask(op, body, blob)(timeout)
        return self._whole(partial(self._request, op, body, blob), timeout)  # type: ignore[arg-type]

    def upload(self, blob: Buffer, timeout: float | None = None) -> dict[str, Any]:
        """Send the blob of a large request, and return what the request's body must have to name it. The server keeps it until the request
        is carried out."""
        number, left, view = next(_numbers), _Left(timeout), memoryview(blob)
        under_way: deque[Pending] = deque()
        for start in range(0, len(view), MAX_BYTES):
            body = {"number": number, "start": start, "bytes": len(view)}
            under_way.append(self._ask("part", body, bytes(view[start : start + MAX_BYTES])))
            if len(under_way) >= AHEAD:
                under_way.popleft()(left())
        while under_way:
            under_way.popleft()(left())
        return {PARTS: number}

    def _after_upload(self, op: str, body: dict[str, Any], blob: Buffer, timeout: float | None = None) -> tuple[dict[str, Any], Buffer]:
        left = _Left(timeout)
        return self._whole(self._ask(op, body | self.upload(blob, left()), b""), left())

    def _whole(self, pending: Pending, timeout: float | None = None) -> tuple[dict[str, Any], Buffer]:
        """The answer, put together if it travels in pieces. The server keeps them only for the connection over which the first one came."""
        left = _Left(timeout)
        body, blob = pending(left())
        if PIECES not in body:
            return body, blob
        number, size = body[PIECES], body.get("bytes")
        if type(number) is not int or type(size) is not int or not 0 < len(blob) <= size:
            raise ProtocolError("the first piece of a large answer does not say how large the answer is")
        data: np.ndarray = empty((size,), "uint8")
        view = memoryview(data)
        view[: len(blob)] = memoryview(blob)
        done = asked = len(blob)
        reconnects = self._stats()["reconnects"]
        under_way: deque[Pending] = deque()
        while done < size:
            while asked < size and len(under_way) < AHEAD:
                stats = self._stats()
                if not stats["connected"] or stats["reconnects"] != reconnects:  # a request would wait for a server that has no such answer
                    raise ConnectionClosedError(f"the connection was lost after {done:,} of {size:,} bytes of an answer had come; ask again")
                under_way.append(self._ask("piece", {"number": number, "start": asked}))
                asked += MAX_BYTES
            piece = under_way.popleft()(left())[1]
            if len(piece) != min(MAX_BYTES, size - done):
                raise ProtocolError(f"a piece of a large answer has {len(piece)} bytes instead of {min(MAX_BYTES, size - done)}")
            view[done : done + len(piece)] = memoryview(piece)
            done += len(piece)
        return parse_reply(view)


class _Left:
    """How many seconds of a timeout are left; None stays None. Raises ValueError if it is negative or NaN."""

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be at least 0 seconds, not {timeout!r}")
        self._ends = None if timeout is None else time.monotonic() + timeout

    def __call__(self) -> float | None:
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

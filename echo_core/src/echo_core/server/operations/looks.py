"""The operation "tap": copies a few samples for an observer and removes none of them from the store (tap.py)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...base.errors import EchoError, ProtocolError
from ...spec.ragged import ChunkSpec
from ...wire.protocol import MAX_CONTROL_BYTES
from ..tap import ROOM
from .operation import storage_of

if TYPE_CHECKING:
    from ...spec.spec import Spec
    from ...wire.peer import Peer
    from ..state import ServerState

__all__ = ["MAX_LOOK_BYTES", "MAX_LOOK_SAMPLES", "tap"]

MAX_LOOK_SAMPLES = 1024
MAX_LOOK_BYTES = 16 << 20  # the most that a learner copies within one sample(), which takes a few milliseconds


def tap(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Operation "tap": `{"n", "table"}` requests a look; `{"tap", "at"}` requests more bytes of a look.

    The bytes are those of each leaf in turn, with all samples in it. Where samples vary in length, the lengths come first, int32 of shape (n, axes).
    """
    if "tap" in body:
        number, at = body["tap"], body.get("at")
        if type(number) is not int or type(at) is not int or at < 0:
            raise ProtocolError("the request for a part of a look needs two whole numbers, tap and at")
        return {}, server._taps.part(number, at)
    n, storage = body.get("n"), storage_of(server, body)
    if type(n) is not int or not 1 <= n <= MAX_LOOK_SAMPLES:
        raise EchoError(f"n must be a whole number from 1 to {MAX_LOOK_SAMPLES}, not {n!r}")
    most = _fitting(n, storage.spec)
    count, leaves, keys = storage.look(most)
    if not count and (granted := server._taps.wished(storage, most)) is not None:
        count, leaves = granted
    why = (
        f"table {storage.name!r} holds no item"
        if storage.name
        else "the store has no samples that are complete and not yet taken, and the learner has taken no batch since"
    )
    return _told(server, storage.spec, count, leaves, keys, why)


def _fitting(n: int, spec: Spec) -> int:
    if isinstance(spec, ChunkSpec):  # how long the newest samples are is not known yet
        return min(n, max(1, MAX_LOOK_BYTES // spec.records.max_record_bytes))
    if spec.sample_bytes > MAX_LOOK_BYTES:
        raise EchoError(f"one sample has {spec.sample_bytes:,} bytes, but a look has at most {MAX_LOOK_BYTES:,}")
    return min(n, MAX_LOOK_BYTES // max(1, spec.sample_bytes))


def _told(server: ServerState, spec: Spec, n: int, leaves: list[bytes], keys: list[int] | None, why: str) -> tuple[dict[str, Any], bytes]:
    if n == 0:
        return {"wait": why}, b""
    data = b"".join(leaves)
    if len(data) > MAX_LOOK_BYTES + ROOM:  # only samples of varying length are so large by surprise
        raise EchoError(f"the newest sample has {len(data):,} bytes, but a look has at most {MAX_LOOK_BYTES:,}; draw it instead, or peek where the server is")
    body: dict[str, Any] = {"n": n, "bytes": len(data), "spec": spec.to_json()}
    if keys is not None:
        body["keys"] = keys
    if len(data) + len(json.dumps(body)) + ROOM <= MAX_CONTROL_BYTES:
        return body, data
    body["tap"] = server._taps.hold(data)
    return body, b""

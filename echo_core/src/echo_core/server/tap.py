"""A server's answer to somebody who wants to look at a few samples (`Observer.tap`, `echoctl tap`) and must take none.

Of a replay table it copies the items that came last. Of a stream it copies what is committed and not yet taken (tap.hpp). Where a learner
takes every batch the moment it is there, the store is empty whenever one looks: then a wish is left, and the learner's next `sample()`
copies a few samples of its batch before anybody can change them. Without a wish that costs it one comparison for each batch.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import optree

from ..base.errors import EchoError, ProtocolError
from ..wire.protocol import MAX_CONTROL_BYTES

if TYPE_CHECKING:
    from ..spec.spec import Spec
    from ..wire.transport import Peer
    from .server import Server

__all__ = ["MAX_LOOK_BYTES", "MAX_LOOK_SAMPLES", "Taps", "answer"]

MAX_LOOK_SAMPLES = 1024
MAX_LOOK_BYTES = 16 << 20  # what a learner copies within one sample() at most: a few milliseconds
ROOM = 4096  # bytes of an answer for its JSON, beside the spec
FRESH = 10.0  # seconds after which a look that nobody fetched is no news any more


@dataclass
class _Wish:
    """`most` samples are wanted; `granted` is `(n, [bytes of each leaf])` once a learner has taken a batch."""

    most: int
    made_at: float = field(default_factory=time.monotonic)
    granted: tuple[int, list[bytes]] | None = None


class Taps:
    """The looks of one server: the wish that is open, and the last look that takes more than one message to fetch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # requests of several observers come at the same time
        self._wish: _Wish | None = None
        self._number = 0
        self._held = b""
        self._held_at = 0.0

    def wished(self, server: Server, most: int) -> tuple[int, list[bytes]] | None:
        """What a learner's batch gave since the last call; None leaves a wish for the next batch."""
        with self._lock:
            wish, self._wish = self._wish, None
            if wish is not None and wish.granted is not None and time.monotonic() - wish.made_at < FRESH:
                return wish.granted
            if wish is None or wish.granted is not None or wish.most < most:
                wish = _Wish(most)
            self._wish = server._tap_wish = wish
        return None

    def hold(self, data: bytes) -> int:
        """Keep a look for `part`, in place of the one before; its number."""
        with self._lock:
            self._number += 1
            self._held, self._held_at = data, time.monotonic()
            return self._number

    def part(self, number: int, at: int) -> bytes:
        """The bytes of a held look from `at` on, as many as travel at once."""
        with self._lock:
            if number != self._number or time.monotonic() - self._held_at > FRESH:
                self._held = b""
                raise EchoError("this look is gone: another one took its place, or it waited too long to be fetched; ask again")
            self._held_at = time.monotonic()
            data = self._held[at : at + MAX_CONTROL_BYTES - ROOM]
            if at + len(data) >= len(self._held):
                self._held = b""
            return data


def answer(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Operation "tap": `{"n", "table"}` asks for a look, `{"tap", "at"}` for more of the bytes of one."""
    if "tap" in body:
        number, at = body["tap"], body.get("at")
        if type(number) is not int or type(at) is not int or at < 0:
            raise ProtocolError("a part of a look is asked for by two whole numbers, tap and at")
        return {}, server._taps.part(number, at)
    n, name = body.get("n"), body.get("table")
    if type(n) is not int or not 1 <= n <= MAX_LOOK_SAMPLES:
        raise EchoError(f"n must be a whole number from 1 to {MAX_LOOK_SAMPLES}, not {n!r}")
    if name is not None and not isinstance(name, str):
        raise ProtocolError("a table's name must be text")
    if server.tables:
        table = server.table(name)
        return _told(server, table.spec, *_of_table(table, _fitting(n, table.spec)), f"table {table.name!r} holds no item")
    if name is not None:
        raise EchoError(f"this server streams: it has no table {name!r}, nor any other; leave the name out")
    most = _fitting(n, server.spec)
    count, leaves = server._newest(most)
    found = (count, leaves) if count else server._taps.wished(server, most) or (0, [])
    why = "nothing is in the store that is not taken or still being written, and the learner has taken no batch since"
    return _told(server, server.spec, found[0], found[1], None, why)


def _fitting(n: int, spec: Spec) -> int:
    if spec.sample_bytes > MAX_LOOK_BYTES:
        raise EchoError(f"one sample is {spec.sample_bytes:,} bytes, and a look carries {MAX_LOOK_BYTES:,} at most")
    return min(n, MAX_LOOK_BYTES // max(1, spec.sample_bytes))


def _of_table(table: Any, n: int) -> tuple[int, list[bytes], list[int]]:
    keys = table.newest(n)
    if keys.size == 0:
        return 0, [], []
    batch, here = table.peek(keys)
    leaves = optree.tree_leaves(batch, namespace=table.spec.namespace)
    return int(here.sum()), [np.ascontiguousarray(leaf[here]).tobytes() for leaf in leaves], keys[here].tolist()


def _told(server: Server, spec: Spec, n: int, leaves: list[bytes], keys: list[int] | None, why: str) -> tuple[dict[str, Any], bytes]:
    if n == 0:
        return {"wait": why}, b""
    data = b"".join(leaves)
    body: dict[str, Any] = {"n": n, "bytes": len(data), "spec": spec.to_json()}
    if keys is not None:
        body["keys"] = keys
    if len(data) + len(json.dumps(body)) + ROOM <= MAX_CONTROL_BYTES:
        return body, data
    body["tap"] = server._taps.hold(data)
    return body, b""

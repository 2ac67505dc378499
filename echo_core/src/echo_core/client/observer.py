"""Connects to a running server without its example and reads its statistics; live views and checks use it."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from ..base.address import Address
from ..base.errors import EchoTimeoutError, ProtocolError
from ..base.green_threads import check_real_threads
from ..base.returned import returned
from ..plugins.reaching import reach
from ..security import tokens
from ..server.operations.looks import MAX_LOOK_BYTES, MAX_LOOK_SAMPLES
from ..server.tap import ROOM
from ..spec.packed import PackedBatch, offsets_of
from ..spec.ragged import ChunkSpec, RaggedSpec
from ..spec.spec import Spec
from ..spec.structure import rebuilt
from ..wire.blobs import split
from ..wire.transport import Connection
from .requests import Requests

__all__ = ["Look", "Observer"]

POLL = (0.01, 0.2)  # seconds between two requests while there is no sample: at first, and at most


class Look(NamedTuple):
    """Copies of samples of a running server.

    Attributes:
        samples: one pytree of arrays for each sample, the newest last. Containers are plain dicts, lists and tuples, as classes are not sent.
        leaves: the same values as one array of shape (n, *leaf.shape) for each leaf of `spec`. Samples of varying length are packed: a leaf that
            is Ragged has the rows of all samples, one after another.
        keys: the keys of the items in their replay table; None in a stream.
        spec: the server's spec, for paths, shapes and dtypes. That of samples of varying length is a `RaggedSpec`.
        rows: for each sample its leaves, in the order of `spec.leaves`.
    """

    samples: list[Any]
    leaves: list[np.ndarray]
    keys: list[int] | None
    spec: Spec | RaggedSpec
    rows: list[list[np.ndarray]]


class Observer:
    """A connection that requests a server's statistics. It sends no samples and does not count as a worker.

    Args:
        address: where the server listens; the scheme selects the transport.
        timeout: seconds: the default timeout of every wait, and how long the observer tries to reach the server.
        token: the shared secret; None takes ECHO_TOKEN, ECHO_TOKEN_FILE or the user's token file.
        auth: False connects without a token to a server that asks for none.
        name: its name in the server's log.

    Raises:
        EchoTimeoutError: no server answers. SecurityError: the token is missing or refused. PluginError: the transport is not installed.
        HandshakeRefused: the server's version is too old to know observers.
    """

    def __init__(
        self,
        address: str | Address,
        *,
        timeout: float = 5.0,
        token: tokens.Explicit = None,
        auth: bool = True,
        name: str = "observer",
    ) -> None:
        check_real_threads()
        self.address = Address.parse(address)
        self.timeout = timeout
        # A connection needs some spec. An observer's handshake does not compare it, and nothing else uses it.
        reached = reach(self.address, None, timeout)
        try:
            made = reached.transport.connect(
                reached.address,
                Spec.from_example(np.zeros(1, np.uint8)),
                role="observer",
                name=name,
                timeout=timeout,
                token=tokens.find_token_for(reached.address, token) if auth else None,
                **reached.options,
            )
        except EchoTimeoutError as error:  # nothing is left of a server that has ended its job, so that nobody can say this for certain
            raise EchoTimeoutError(f"{error}; if a server was there before, its job may be over") from error
        self._connection = returned(made, Connection, f"{self.address}: connect()")

    def request(self, op: str, body: dict[str, Any] | None = None, timeout: float | None = None) -> dict[str, Any]:
        """Request an operation by name. Raises EchoError with the server's message, or EchoTimeoutError."""
        return Requests(self._connection).request(op, body or {}, b"", timeout)[0]

    def stats(self, timeout: float | None = None) -> dict[str, Any]:
        """`Server.stats()`."""
        return self.request("stats", timeout=timeout)

    def tap(self, n: int = 4, *, table: str | None = None, timeout: float | None = None) -> Look:
        """Copy up to n of the newest samples. The samples stay in the store, and neither rate limiters nor counters are affected.

        In a stream, these are samples that are committed and not yet taken. If the learner takes all of them at once, they are the newest
        samples of its next batch. The answer has at most 16 MiB, so it has fewer samples if they are large.

        Args:
            n: from 1 to 1024.
            table: a replay table; None is the first table, or the stream.
            timeout: seconds to wait for a sample.

        Raises:
            EchoTimeoutError: there was no sample in time; the message says why. EchoError: there is no such table, or a sample is larger
                than 16 MiB. SecurityError: the token does not permit reading.
        """
        if type(n) is not int or not 1 <= n <= MAX_LOOK_SAMPLES:
            raise ValueError(f"n must be a whole number from 1 to {MAX_LOOK_SAMPLES}, not {n!r}")
        seconds = self.timeout if timeout is None else timeout
        began, pause = time.monotonic(), POLL[0]
        while True:
            body, data = self._connection.request("tap", {"n": n, "table": table}, b"", max(1.0, seconds))
            if "wait" not in body:
                break
            if time.monotonic() - began >= seconds:
                raise EchoTimeoutError(f"tap() waited {seconds:g} s for a sample: {body['wait']}; start a worker, or see who waits: echoctl top {self.address}")
            time.sleep(pause)
            pause = min(2 * pause, POLL[1])
        spec, count, size = ChunkSpec.from_json(body["spec"]), int(body["n"]), int(body["bytes"])
        if size > MAX_LOOK_BYTES + ROOM or (count * spec.sample_bytes != size and not isinstance(spec, ChunkSpec)):
            raise ProtocolError(f"the look has {count} samples and {size} bytes, which is not possible; install the same echo-core at both ends")
        while len(data) < size:
            part = self._connection.request("tap", {"tap": body["tap"], "at": len(data)}, b"", max(1.0, seconds))[1]
            if not part:
                raise ProtocolError(f"a look ended after {len(data)} of {size} bytes; ask again")
            data += part
        if isinstance(spec, ChunkSpec):
            packed = _packed(spec.records, count, data)
            rows = [packed.leaves(i) for i in range(count)]
            return Look([rebuilt(spec.records.structure, row) for row in rows], list(packed.arrays), body.get("keys"), spec.records, rows)
        leaves = split(data, *((leaf.dtype, (count, *leaf.shape)) for leaf in spec.leaves))
        rows = [[leaf[i, ...] for leaf in leaves] for i in range(count)]
        return Look([rebuilt(spec.structure, row) for row in rows], leaves, body.get("keys"), spec, rows)

    def ping(self) -> tuple[float, float]:
        """The seconds of one round trip, and how many seconds the server's clock is ahead of this one (to within half a round trip)."""
        start, sent = time.monotonic(), time.time()
        theirs = float(self.request("ping")["time"])
        took = time.monotonic() - start
        return took, theirs - (sent + took / 2)

    @property
    def ended(self) -> bool:
        """Whether the learner has ended the job; every call then raises JobEnded."""
        return self._connection.ended

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close(1.0)

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Observer {self.address}>"


def _packed(spec: RaggedSpec, n: int, data: bytes) -> PackedBatch:
    """The n samples of a look: their lengths, int32 of shape (n, axes), then the packed leaves. Raises ProtocolError."""
    head = 4 * n * len(spec.axes)
    lengths = split(data[:head], (np.int32, (n, len(spec.axes))))[0]
    if ((lengths < 0) | (lengths > np.array(spec.most))).any():
        raise ProtocolError(f"the look has a sample of an impossible length; the axes {spec.axes} have at most {spec.most} rows")
    totals = lengths.sum(axis=0, dtype=np.int64).tolist()
    arrays = split(data[head:], *((leaf.dtype, (n if leaf.axis < 0 else totals[leaf.axis], *leaf.shape)) for leaf in spec.leaves))
    return PackedBatch(spec, arrays, offsets_of(lengths))

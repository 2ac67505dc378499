"""Accesses a learner's replay table from another process or machine, by requests to the server over any transport."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_core.base.errors import ClosedError, ConfigError, ConnectionClosedError, EchoError, EchoTimeoutError, SpecError
from echo_core.base.plural import counted
from echo_core.base.waiting import Wait
from echo_core.spec.spec import Spec
from echo_core.store.sampler import Keys, check_keys, check_priorities
from echo_core.wire.blobs import DRAWN, MAX_BYTES, MAX_KEYS, MOST_BYTES, join, max_rows, split

from . import asking_again
from .asking_again import FINAL, patience
from .batch_memory import BatchMemory
from .pending_sample import PendingSample
from .remote_sample import Drawing, RemoteInfo, RemoteSample
from .turn import Turn
from .weights import weights_of

if TYPE_CHECKING:
    from echo_core.client.requests import Requests
    from echo_core.spec.leaf import LeafSpec
    from echo_core.wire.protocol import Buffer
    from echo_core.wire.transport import Pending

__all__ = ["RemoteTable"]

AHEAD = 2  # messages of one batch under way; with more, data in the processor's caches would be overwritten before it is read


class RemoteTable:
    """One table of a server; `requests` sends its requests. Thread-safe."""

    def __init__(self, requests: Requests, spec: Spec, name: str | None, timeout: float) -> None:
        self._requests = requests
        self._spec = spec
        self._name = name
        self._timeout = timeout
        self._names = {} if name is None else {"table": name}
        self._per_message = messages_of(spec.sample_bytes)

    @property
    def spec(self) -> Spec:
        return self._spec

    def update_priorities(self, keys: Any, priorities: Any, timeout: float | None = None) -> int:
        """Like `ReplayTable.update_priorities`. The priorities are applied when this returns; very many are applied in several parts."""
        checked = check_keys(keys)
        values = check_priorities(priorities, checked)
        gone, zeros = 0, np.flatnonzero(values == 0)[:1]
        if checked.size > MAX_KEYS and zeros.size:  # some tables refuse 0, and must do so before any other priority is applied
            self._ask("update_priorities", 1, join(checked[zeros], values[zeros]), timeout)
        for start in range(0, checked.size, MAX_KEYS):
            part = slice(start, start + MAX_KEYS)
            blob = join(checked[part], values[part])
            gone += self._ask("update_priorities", len(checked[part]), blob, timeout)[0]["gone"]
        return gone

    def delete(self, keys: Any, timeout: float | None = None) -> int:
        """Like `ReplayTable.delete`."""
        checked = check_keys(keys)
        deleted = 0
        for part in _parts(checked, MAX_KEYS):
            deleted += self._ask("delete", len(part), join(part), timeout, counts=True)[0]["deleted"]
        return deleted

    def ack(self, keys: Any, timeout: float | None = None) -> int:
        """Like `ReplayTable.ack`."""
        checked = check_keys(keys)
        ended = 0
        for part in _parts(checked, MAX_KEYS):
            ended += self._ask("ack", len(part), join(part), timeout, counts=True)[0]["acknowledged"]
        return ended

    def peek(self, keys: Any, timeout: float | None = None) -> tuple[Any, np.ndarray]:
        """Like `ReplayTable.peek`: items by key, and which of them exist. Items that arrive in different messages may be from different moments."""
        checked = check_keys(keys)
        if checked.size == 0:
            raise ValueError("peek() needs at least one key")
        parts = []
        for part in _parts(checked, max_rows(self._spec)):
            blob = self._ask("peek", len(part), join(part), timeout)[1]
            parts.append(split(blob, (np.bool_, (len(part),)), *((leaf.dtype, (len(part), *leaf.shape)) for leaf in self._spec.leaves)))
        here, *leaves = [np.concatenate(rows) for rows in zip(*parts)]
        return self._spec.flattener.unflatten(leaves), here

    def update_items(self, keys: Any, leaves: Mapping[str, Any], timeout: float | None = None) -> np.ndarray:
        """Like `ReplayTable.update_items`: overwrite leaves of items in place (for a worker that reanalyses), and return which of them existed."""
        checked = check_keys(keys)
        known = {leaf.path: leaf for leaf in self._spec.leaves}
        arrays = {}
        for path, value in leaves.items():
            if path not in known:
                raise SpecError(f"the table has no leaf {path!r}; it has {', '.join(map(repr, known))}")
            arrays[path] = known[path].stacked(value, checked.size)
        here, start = [np.empty(0, np.bool_)], 0
        for part in _parts(checked, max_rows(self._spec)):
            rows = slice(start, start + len(part))
            blob = join(part, *(array[rows] for array in arrays.values()))
            answer = self._ask("update_items", len(part), blob, timeout, leaves=list(arrays))[1]
            here.append(split(answer, (np.bool_, (len(part),)))[0])
            start += len(part)
        return np.concatenate(here)

    def top(self, k: int, timeout: float | None = None) -> tuple[Keys, np.ndarray]:
        """Like `ReplayTable.top`; k is at most 65 280."""
        body, blob = self._ask("top", k, b"", timeout)
        keys, priorities = split(blob, (np.uint64, (body["n"],)), (np.float64, (body["n"],)))
        return keys, priorities

    def priority_histogram(self, bins: int = 32, timeout: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Like `ReplayTable.priority_histogram`, with `bins` equal ranges."""
        counts, edges = split(self._ask("priority_histogram", bins, b"", timeout)[1], (np.int64, (bins,)), (np.float64, (bins + 1,)))
        return counts, edges

    def insert(self, samples: Any, priorities: Any = None, timeout: float | None = None) -> Keys:
        """Insert N samples and return their keys; leaves have shape `(N, *leaf.shape)`. For many samples in a row, `send` is faster.

        Raises:
            SpecError, ValueError: nothing was inserted.
            EchoTimeoutError: the rate limiter allowed no insert in time. The samples of earlier parts of a large batch stay inserted; the
                error's attribute `inserted` says how many.
            EchoError: the table refused some samples; the message says how many were inserted before.
        """
        total, data = self._spec.flattener.batch_tobytes(samples)
        leaves = split(data, *((leaf.dtype, (total, *leaf.shape)) for leaf in self._spec.leaves))
        values = None if priorities is None else check_priorities(priorities, np.arange(total, dtype=np.uint64), what="sample")
        keys, step = [np.empty(0, np.uint64)], max_rows(self._spec)
        for start in range(0, total, step):
            part = slice(start, start + step)
            given = [] if values is None else [values[part]]
            n = min(step, total - start)
            blob = join(*given, *(leaf[part] for leaf in leaves))
            try:
                answer = Turn(self._requests, "insert", {"n": n, **self._named(), "priorities": bool(given)}, blob, self._seconds(timeout)).wait()
            except EchoTimeoutError as error:
                error.inserted = start
                raise
            except EchoError as error:
                if start:
                    raise type(error)(f"{start} of {total} were inserted; among the others, counted from the first of them: {error}") from error
                raise
            keys.append(split(answer[1], (np.uint64, (n,)))[0])
        return np.concatenate(keys)

    def sample(self, n: int, timeout: float | None = None, beta: float | None = None) -> RemoteSample:
        """Draw n items of at most 1 GiB. A batch that is larger than one message is drawn at once and travels in several messages.

        Raises:
            ValueError: n is not a whole number of at least 1.
            EchoTimeoutError: the rate limiter allowed no such batch in time. ClosedError: the server is closed. ConnectionClosedError: the
                connection was lost and did not return in time, or items that are drawn only a few times were lost with it.
        """
        sample: RemoteSample = self._finish(self._begin(n, beta), timeout)
        return sample

    def sample_units(self, units: Mapping[str, int], timeout: float | None = None, beta: float | None = None) -> Any:
        """Draw by a budget of rows, which only a table of samples of varying length can; this one raises ConfigError."""
        raise ConfigError(f"units={units!r} is for tables of samples of varying length; give n, a number of items")

    def _plan(self) -> tuple[int, Sequence[LeafSpec], dict[str, Any]]:
        """How a batch is requested: the items per message, the leaves, and further arguments."""
        return self._per_message, self._spec.leaves, {}

    def sample_begin(self, n: int, timeout: float | None = None, beta: float | None = None) -> PendingSample:
        """Ask for a batch, and return at once: `collect()` of the result waits for it. So one thread can ask many servers at the same time.

        Args:
            n: items.
            timeout: seconds that the request may wait at its table, from now on. None is the client's.
            beta: exponent of the weights; None is the table's own.

        Raises:
            ValueError: n is not a whole number of at least 1. ConnectionClosedError, ClosedError: the request could not be sent.
        """
        drawing, seconds = self._begin(n, beta), self._seconds(timeout)
        drawing.begin()
        drawing.turn = self._turn(drawing, seconds)
        drawing.turn.begin()
        return PendingSample(drawing, drawing.turn, partial(self._finish, drawing, seconds), partial(self._finish_part, drawing, seconds))

    def memory(self, n: int) -> BatchMemory:
        """Memory for a batch of n items of this table, for `PendingSample.collect_into`."""
        return BatchMemory(n, self._plan()[1])

    def made(self, leaves: list[np.ndarray], info: Any, keys: np.ndarray, probabilities: np.ndarray, weights: np.ndarray) -> Any:
        """The sample with these arrays, in the order of `BatchMemory.leaves`."""
        return RemoteSample(self._spec.flattener.unflatten(leaves), info, keys, probabilities, weights)

    def _begin(self, n: int, beta: float | None) -> Drawing:
        """Prepare a batch; `_finish` sends the remaining requests and waits for the answers."""
        if not hasattr(type(n), "__index__") or n < 1:
            raise ValueError(f"n must be a whole number of at least 1, not {n!r}")
        step, wanted, more = self._plan()
        return Drawing(n, step, wanted, more if beta is None else more | {"beta": beta})

    def _finish(self, drawing: Drawing, timeout: float | None, answered: Callable[[], None] | None = None) -> Any:
        memory, figures = self._draw(drawing, timeout, answered)
        inverse = 1.0 / memory.probabilities
        info = self._info(figures, memory, 0, float(inverse.sum() ** 2 / inverse.dot(inverse)))
        return self.made(memory.leaves, info, memory.keys, memory.probabilities, weights_of(memory.probabilities, info))

    def _finish_part(self, drawing: Drawing, timeout: float | None) -> RemoteInfo:
        """Wait for a batch that is a part of a larger one, whose memory it has."""
        memory = drawing.memory
        assert memory is not None
        first = memory.filled
        return self._info(self._draw(drawing, timeout)[1], memory, first, math.nan)

    def _draw(self, drawing: Drawing, timeout: float | None, answered: Callable[[], None] | None = None) -> tuple[BatchMemory, dict[str, Any]]:
        """The arrays of a batch, and the body of its last answer. `answered` is called after each answer."""
        n, step = drawing.n, drawing.step
        wait = Wait(self._seconds(timeout))  # for all messages together
        memory = drawing.memory or BatchMemory(n, drawing.wanted)
        start, first = 0, memory.filled
        try:
            while start < n:
                k = min(step, n - start)
                if start == 0:
                    body, blob = drawing.first or self._first(drawing, wait.left())
                    drawing.to_ask = max(drawing.to_ask, k)
                else:
                    try:
                        body, blob = self._part(drawing, start, wait.left())
                    except ConnectionClosedError as error:
                        if isinstance(error, FINAL) or not drawing.comes_back or not wait.left():
                            raise
                        drawing.lose()
                        start, memory.filled = 0, first
                        continue
                if body.get("closed"):
                    raise ClosedError("sample(): the server is closed")
                if answered is not None:
                    answered()
                elif drawing.to_ask < n:
                    self._ask_ahead((drawing,), AHEAD)
                memory.copy(blob, k, bool(body.get("versions")))
                start += k
        except BaseException:
            memory.filled = first
            raise
        return memory, body

    def _info(self, figures: dict[str, Any], memory: BatchMemory, first: int, effective_sample_size: float) -> RemoteInfo:
        """What the last answer of a batch, whose items lie in `memory` from `first` on, says of the table."""
        versions = memory.policy_versions
        return RemoteInfo(
            table=self._name,
            store_size=int(figures["store_size"]),
            inserted=int(figures["inserted"]),
            sampled=int(figures["sampled"]),
            redrawn=int(figures["redrawn"]),
            effective_sample_size=effective_sample_size,
            policy_version=int(figures.get("policy_version", 0)),
            policy_versions=versions[first : memory.filled] if versions is not None and figures.get("versions") else None,
            mass=figures.get("mass"),
            beta=float(figures["beta"]),
            lag_weight=float(figures.get("lag_weight", 1)),
        )

    def _turn(self, drawing: Drawing, timeout: float) -> Turn:
        body = {"n": drawing.n, **self._named(), **drawing.body(0)}
        return Turn(self._requests, "sample", body, b"", timeout, drawing.number, drawing.lost)

    def _first(self, drawing: Drawing, timeout: float) -> tuple[dict[str, Any], Buffer]:
        """The first answer of a batch, which is drawn as soon as the table has one."""
        turn, drawing.turn = drawing.turn, None
        if turn is None:
            drawing.begin()
            turn = self._turn(drawing, timeout)
        answer = turn.wait(drawing.comes_back)
        drawing.lost = False
        self._has_come(drawing)
        return answer

    def _has_come(self, drawing: Drawing) -> None:
        """The first answer of a batch is here. Only a batch in parts needs to know whether the connection is lost afterwards."""
        if drawing.n > drawing.step:
            drawing.reconnects = self._requests.reconnects()

    def _part(self, drawing: Drawing, start: int, left: float) -> tuple[dict[str, Any], Buffer]:
        """The answer with the items from `start` on, of a batch that is already drawn."""
        too_late = f"sample() received only {start} of {counted(drawing.n, 'item')} in time; draw fewer, or wait longer (timeout=)"
        if left == 0:
            raise EchoTimeoutError(too_late)
        self._ask_ahead((drawing,), 1)
        try:
            answer = drawing.asked.popleft()(patience(left))
            if answer[0].get("gone"):  # this part was requested before the batch was drawn
                answer = self._send("sample", drawing.n, **drawing.body(start))(patience(left))
        except EchoTimeoutError as error:
            raise EchoTimeoutError(too_late) from error
        if answer[0].get("gone"):
            if self._requests.reconnects() != drawing.reconnects:
                raise ConnectionClosedError("sample() received a part of its batch, and the connection was lost")
            raise EchoError(f"the server has dropped the rest of this batch of {drawing.n}; draw such large batches in fewer threads")
        return answer

    def batches(self, n: int, timeout: float | None, beta: float | None, prefetch: int) -> Iterator[RemoteSample]:
        """Yield batches of n items in the order of their draws until the server is closed, with `prefetch` of them on the way. At most
        `AHEAD` messages of large batches are on the way."""
        if sum(leaf.nbytes for leaf in self._plan()[1]) + DRAWN > MAX_BYTES:
            prefetch = 0  # the server keeps every drawn batch as a whole, and several of such size could be more than it may keep
        drawings: deque[Drawing] = deque()

        def answered() -> None:
            while len(drawings) <= prefetch:
                drawings.append(self._begin(n, beta))
            self._ask_ahead(drawings, 1 + max(prefetch, AHEAD))

        try:
            while True:
                answered()
                # A batch that could not be drawn when it was requested comes after the next drawn one, and is requested again with it.
                for _ in range(len(drawings)):
                    if (drawing := drawings[0]).asked:
                        try:
                            drawing.first = drawing.asked.popleft()(patience(timeout))
                            self._has_come(drawing)
                        except ConnectionClosedError as error:
                            if isinstance(error, FINAL):
                                raise
                            drawing.lose()
                    if drawing.first is None or "wait" not in drawing.first[0]:
                        break
                    drawing.first, drawing.to_ask = None, 0
                    drawing.asked.clear()
                    drawings.rotate(-1)
                sample = self._finish(drawings[0], timeout, answered)
                drawings.popleft()
                yield sample
        except FINAL:
            return

    def _ask_ahead(self, drawings: Iterable[Drawing], most: int) -> None:
        """Send requests until `most` messages of these batches are under way, in order."""
        under_way = sum(len(drawing.asked) for drawing in drawings)
        for drawing in drawings:
            while drawing.to_ask < drawing.n and under_way < most:
                if drawing.to_ask == 0:
                    drawing.begin()
                drawing.asked.append(self._send("sample", drawing.n, **drawing.body(drawing.to_ask)))
                drawing.to_ask = min(drawing.to_ask + drawing.step, drawing.n)
                under_way += 1

    def _ask(self, op: str, n: int, blob: bytes, timeout: float | None, counts: bool = False, **body: Any) -> tuple[dict[str, Any], Buffer]:
        """The answer to a request that may be carried out twice; see `asking_again.ask`."""
        return asking_again.ask(self._requests, op, {"n": n, **self._named(), **body}, blob, self._seconds(timeout), counts)

    def _send(self, op: str, n: int, **body: Any) -> Pending:
        return self._requests.ask(op, {"n": n, **self._named(), **body})

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    def _named(self) -> dict[str, str]:
        return self._names


def messages_of(item_bytes: int) -> int:
    """Items per request of a batch: as many as fit into a message. If not even one fits, a request is for the whole batch, and its answer
    travels in pieces."""
    row = item_bytes + DRAWN
    return MAX_BYTES // row or max(1, MOST_BYTES // row)


def _parts(keys: Keys, most: int) -> Iterator[Keys]:
    """Split `keys` into runs of at most `most`."""
    return (keys[start : start + most] for start in range(0, keys.size, most))

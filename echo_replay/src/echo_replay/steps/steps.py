"""How a worker sends steps: each step once, with a mark that says which episode it belongs to and whether the episode ends with it.

    with Client(address, Steps(step), table="replay") as client:
        client.send(step)                                   # one environment
        client.send(step, end="terminated")                 # ... whose episode ends with this step
        client.send(step, stream=3)                         # the fourth environment of this worker
        client.end_episode("truncated", stream=3)           # ... whose last step was sent already

The mark is a separate leaf in front of the user's leaves, so that every transport carries it like any other part of a sample.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from echo_core.base.errors import SpecError
from echo_core.base.forks import Origin
from echo_core.base.plural import counted
from echo_core.base.waiting import timed_out
from echo_core.spec.arrays import as_numbers
from echo_core.spec.marked_example import MarkedExample, MarkedSender
from echo_core.spec.spec import Spec
from echo_core.wire.identity import client_number

__all__ = ["ENDS", "StepStreams", "Steps"]

# How an episode goes on after a step. The values are those of steps/item_cutter.hpp.
ENDS = {None: 0, "terminated": 1, "truncated": 2, "boundary": 3}
NOTE = 4  # a flag: this row is no step, only the end of the episode before it
CONTINUES = 8  # a flag: the stream's previous step is of the same episode. If the table has lost that one, this step is no beginning of an episode.
MOST_STREAMS = 1 << 16  # of one client

# (stream, number in the stream * 256 + flags); the stream is (first 48 bits of the client's id) * 2^16 + the environment's number.
_MARK = np.zeros(2, np.uint64)


class Steps(MarkedExample):
    """The example for a table of steps, as a client passes it: `Client(address, Steps(step))`.

    Args:
        example: one step, as a pytree of numpy arrays.
        namespace: the optree namespace of the example's classes.

    Attributes:
        step: the `Spec` of a step. wire: the `Spec` of what is sent, which is the mark and the step.
    """

    def __init__(self, example: Any, *, namespace: str = "") -> None:
        self.step = Spec.from_example(example, namespace=namespace)
        self.wire = wire_spec(self.step)

    def sender(self, send: Callable[..., Any], send_batch: Callable[..., Any], client_id: str) -> StepStreams:
        return StepStreams(self, send, send_batch, client_id)

    def __repr__(self) -> str:
        return f"Steps({self.step!r})"


def wire_spec(step: Spec) -> Spec:
    """Return the spec of a step with its mark, which is the first leaf."""
    return Spec.from_example({"echo": _MARK, "step": _zeros(step)}, namespace=step.namespace)


def _zeros(spec: Spec) -> Any:
    if spec.treedef is None:
        raise SpecError("a spec that came from a peer's description has no tree; give the example itself")
    return spec.treedef.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in spec.leaves])


class StepStreams(MarkedSender):
    """The streams of one connection: they do for a table of steps what `Client.send` does otherwise. Thread-safe.

    Args:
        steps: the table's example.
        send, send_batch: those of the connection, or of a table in this process.
        client_id: 32 hex digits.
    """

    def __init__(self, steps: Steps, send: Callable[..., Any], send_batch: Callable[..., Any], client_id: str) -> None:
        self._send, self._send_batch = send, send_batch
        self.step = steps.step
        self._client = client_number(client_id) << 16
        self._origin = Origin("this stream of steps")
        self._lock = threading.Lock()  # a step gets its number only once it has been sent
        self._mark: Any = np.zeros(2, np.uint64)
        self._sent = np.zeros(16, np.uint64)  # number of steps of each stream
        self._open = np.zeros(16, np.bool_)  # whether the stream's last step has not ended its episode
        self._nothing: Any = None

    def send(self, step: Any, timeout: float | None = None, *, end: str | None = None, stream: int = 0) -> None:
        """Send one step.

        Args:
            end: None, or how the episode ends with this step. "terminated": the environment itself ended it. "truncated": it was cut off, and
                nothing is known of what comes after. "boundary": it was cut off before this step, which is only the step that the previous
                one led to (its observation is bootstrapped from; its action and reward are not used).
            stream: the environment's number within this client, from 0 to 65535.

        Raises:
            ValueError: there is no such end or stream; nothing was sent. Otherwise as `Client.send`.
        """
        self._put(step, _flags(end), timeout, stream)

    def end_episode(self, end: str = "truncated", timeout: float | None = None, *, stream: int = 0) -> None:
        """Say that the stream's episode ended with the step that was sent last. Without an open episode nothing happens.

        Raises:
            ValueError: `end` is neither "terminated" nor "truncated". Otherwise as `Client.send`.
        """
        if end not in ("terminated", "truncated"):
            hint = "; a boundary is a step of its own: send(step, end='boundary')" if end == "boundary" else ""
            raise ValueError(f"end must be 'terminated' or 'truncated', not {end!r}{hint}")
        if self._nothing is None:
            self._nothing = _zeros(self.step)
        self._put(self._nothing, ENDS[end] | NOTE, timeout, stream)

    def _put(self, step: Any, flags: int, timeout: float | None, stream: int) -> None:
        self._enter(timeout)
        try:
            at = self._count(stream)
            continues = CONTINUES if self._open[stream] else 0
            _PACK.pack_into(self._mark, 0, self._client | int(stream), at << 8 | flags | continues)
            try:
                self._send({"echo": self._mark, "step": step}, timeout)
            except SpecError:
                self.step.check(step)  # its error has the step's own names
                raise
            self._sent[stream], self._open[stream] = at + 1, flags == 0
        finally:
            self._lock.release()

    def send_batch(self, steps: Any, timeout: float | None = None, *, ends: Any = None, stream: int | None = None, streams: Any = None) -> None:
        """Send N steps at once, with leaves of shape `(N, *leaf.shape)`: one step of each of N environments, or N steps of one.

        Args:
            ends: shape (N,), each entry None or one of `ENDS`; None alone means that no episode ends.
            stream: the number of the one environment whose next N steps these are.
            streams: shape (N,): the environments' numbers, all different; None without `stream` means 0 to N - 1.

        Raises:
            ValueError: as `send`; nothing was sent.
        """
        n = self.step.flattener.check_batch(steps)
        flags: Any = np.zeros(n, np.uint64) if ends is None else np.array([_flags(end) for end in ends], np.uint64)
        if ends is not None and len(flags) != n:
            raise ValueError(f"{counted(n, 'step')} sent with {counted(len(flags), 'end')}; give one end for each step")
        if stream is not None and streams is not None:
            raise ValueError("give either stream, for N steps of one environment, or streams, for one step of each of N")
        if n == 0:
            return
        numbers: Any = np.arange(n) if streams is None else as_numbers(streams, "streams")
        if streams is not None and (numbers.shape != (n,) or len(np.unique(numbers)) != n):
            raise ValueError(f"streams must be {n} numbers, none twice, not {streams!r:.200}; for N steps of one environment give stream=")
        self._enter(timeout)
        try:
            marks = np.empty((n, 2), np.uint64)
            if stream is not None:
                at = self._count(stream) + np.arange(n, dtype=np.uint64)
                numbers = stream
                continues = np.append(self._open[stream], flags[:-1] == 0)
            else:
                for number in (numbers.min(), numbers.max()):
                    self._count(number)
                at, continues = self._sent[numbers], self._open[numbers]
            marks[:, 0] = np.uint64(self._client) | np.asarray(numbers, np.uint64)
            marks[:, 1] = at << np.uint64(8) | flags | np.where(continues, np.uint64(CONTINUES), np.uint64(0))
            self._send_batch({"echo": marks, "step": steps}, timeout)
            self._sent[numbers] = at[-1] + np.uint64(1) if stream is not None else at + np.uint64(1)
            self._open[numbers] = flags[-1] == 0 if stream is not None else flags == 0
        finally:
            self._lock.release()

    def _enter(self, timeout: float | None) -> None:
        if self._lock.acquire(False):
            return
        self._origin.check()
        if not self._lock.acquire(timeout=-1 if timeout is None or timeout == math.inf else timeout):
            raise timed_out("send()", timeout, "another thread's send of this client; give each thread its own client")

    def _count(self, stream: Any) -> int:
        """Return how many steps of a stream were sent so far."""
        if not hasattr(type(stream), "__index__") or isinstance(stream, bool) or not 0 <= stream < MOST_STREAMS:
            raise ValueError(f"stream must be a whole number from 0 to {MOST_STREAMS - 1}, not {stream!r}")
        if stream >= len(self._sent):
            self._sent = np.concatenate([self._sent, np.zeros(int(stream) + 1, np.uint64)])
            self._open = np.concatenate([self._open, np.zeros(int(stream) + 1, np.bool_)])
        return int(self._sent[stream])


_PACK = struct.Struct("=QQ")


def _flags(end: Any) -> int:
    flags = ENDS.get(end) if end is None or isinstance(end, str) else None
    if flags is None:
        raise ValueError(f"end must be None, 'terminated', 'truncated' or 'boundary', not {end!r}")
    return flags

"""How a worker sends steps: each once, with a mark that says which episode it belongs to and whether that ends with it.

    with Client(address, Steps(step), table="replay") as client:
        client.send(step)                                   # one environment
        client.send(step, end="terminated")                 # ... whose episode ends with this step
        client.send(step, stream=3)                         # the fourth environment of this worker
        client.end_episode("truncated", stream=3)           # ... whose last step was sent already

The mark is a leaf of its own in front of the user's, so that every transport carries it as it carries any sample.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import SpecError
from .spec import Spec

__all__ = ["ENDS", "StepStreams", "Steps", "new_client_id"]

# How an episode goes on after a step; the values are those of replay/cutter.hpp.
ENDS = {None: 0, "terminated": 1, "truncated": 2, "boundary": 3}
NOTE = 4  # a flag: this row is no step, only the end of the episode before it
MOST_STREAMS = 1 << 16  # of one client

# (stream, number in the stream * 256 + flags); the stream is the first 48 bits of the client's id * 2^16 + the environment's number.
_MARK = np.zeros(2, np.uint64)


class Steps:
    """The example of a table of steps, as a client gives it: `Client(address, Steps(step))`.

    Args:
        example: a pytree of numpy arrays: one step.
        namespace: optree namespace of the example's classes.

    Attributes:
        step: the `Spec` of a step. wire: that of what is sent, the mark and the step.
    """

    def __init__(self, example: Any, *, namespace: str = "") -> None:
        self.step = Spec.from_example(example, namespace=namespace)
        self.wire = wire_spec(self.step)

    def __repr__(self) -> str:
        return f"Steps({self.step!r})"


def wire_spec(step: Spec) -> Spec:
    """The spec of a step with its mark, which is the first leaf."""
    return Spec.from_example({"echo": _MARK, "step": _zeros(step)}, namespace=step.namespace)


def _zeros(spec: Spec) -> Any:
    if spec.treedef is None:
        raise SpecError("a spec that came from a peer's description has no tree; give the example itself")
    return spec.treedef.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in spec.leaves])


def new_client_id() -> str:
    """An id for a client whose streams the server can tell from those of all others."""
    return secrets.token_hex(16)


def client_number(client_id: str) -> int:
    """What of a client's id stands in its steps' marks."""
    return int(client_id[:12], 16)


class _Stream:
    """One environment's steps. `lock` keeps several threads from sending in it at once: they would mix two episodes."""

    def __init__(self, number: int) -> None:
        self.lock = threading.Lock()
        self.mark = np.array([number, 0], np.uint64)
        self.sent = 0


class StepStreams:
    """The streams of one connection: what `Client.send` is for a table of steps.

    Args:
        steps: the table's example.
        send, send_batch: of the connection, or of a table in this process.
        client_id: 32 hex digits.
    """

    def __init__(self, steps: Steps, send: Callable[..., Any], send_batch: Callable[..., Any], client_id: str) -> None:
        self._send, self._send_batch = send, send_batch
        self.step = steps.step
        self._client = client_number(client_id)
        self._streams: dict[int, _Stream] = {}
        self._nothing: Any = None

    def send(self, step: Any, timeout: float | None = None, *, end: str | None = None, stream: int = 0) -> None:
        """Take over one step.

        Args:
            end: None, or how the episode ends with this step: "terminated" by the environment itself; "truncated" cut off, with nothing
                known of what comes after; "boundary": the episode was cut off before this step, which is only what the one before led to
                (its observation is bootstrapped from, its action and reward are not used).
            stream: the environment's number within this client, from 0 to 65535.

        Raises:
            ValueError: no such end or stream; nothing was taken. As `Client.send`.
        """
        self._put(step, _ends(end), timeout, stream)

    def end_episode(self, end: str = "truncated", timeout: float | None = None, *, stream: int = 0) -> None:
        """The stream's episode ended with the step that was sent last; without an open episode nothing happens.

        Raises:
            ValueError: `end` is neither "terminated" nor "truncated". As `Client.send`.
        """
        if end not in ("terminated", "truncated"):
            hint = "; a boundary is a step of its own: send(step, end='boundary')" if end == "boundary" else ""
            raise ValueError(f"end must be 'terminated' or 'truncated', not {end!r}{hint}")
        if self._nothing is None:
            self._nothing = _zeros(self.step)
        self._put(self._nothing, ENDS[end] | NOTE, timeout, stream)

    def _put(self, step: Any, flags: int, timeout: float | None, number: int) -> None:
        stream = self._stream(number)
        with stream.lock:
            stream.mark[1] = stream.sent << 8 | flags
            self._send({"echo": stream.mark, "step": step}, timeout)
            stream.sent += 1

    def send_batch(
        self, steps: Any, timeout: float | None = None, *, ends: Any = None, stream: int | None = None, streams: Any = None
    ) -> None:
        """Take over N steps at once, leaves of shape `(N, *leaf.shape)`: one of each of N environments, or N of one.

        Args:
            ends: shape (N,): None or one of `ENDS` for each; None for all is no end.
            stream: the number of the one environment whose next N steps these are.
            streams: shape (N,): the environments' numbers, none twice; None without `stream` is 0 to N - 1.

        Raises:
            ValueError: as `send`; nothing was taken.
        """
        n = self.step.flattener.check_batch(steps)
        flags = [0] * n if ends is None else [_ends(end) for end in ends]
        if len(flags) != n:
            raise ValueError(f"{n} steps need {n} ends, not {len(flags)}")
        if stream is not None:
            if streams is not None:
                raise ValueError("give either stream, for N steps of one environment, or streams, for one step of each of N")
            numbers = [stream] * n
        else:
            numbers = list(range(n)) if streams is None else [int(number) for number in streams]
            if len(numbers) != n or len(set(numbers)) != n:
                raise ValueError(f"streams must be {n} numbers, none twice, not {numbers!r:.200}; N steps of one need stream=")
        chosen = {number: self._stream(number) for number in numbers}
        marks = np.empty((n, 2), np.uint64)
        sent: dict[int, int] = {}
        for held in (order := [chosen[number] for number in sorted(chosen)]):
            held.lock.acquire()
        try:
            for i, number in enumerate(numbers):
                at = sent.get(number, chosen[number].sent)
                marks[i, 0], marks[i, 1] = chosen[number].mark[0], at << 8 | flags[i]
                sent[number] = at + 1
            self._send_batch({"echo": marks, "step": steps}, timeout)
            for number, at in sent.items():
                chosen[number].sent = at
        finally:
            for held in order:
                held.lock.release()

    def _stream(self, number: int) -> _Stream:
        stream = self._streams.get(number)
        if stream is None:
            if isinstance(number, bool) or not hasattr(type(number), "__index__") or not 0 <= number < MOST_STREAMS:
                raise ValueError(f"stream must be a whole number from 0 to {MOST_STREAMS - 1}, not {number!r}")
            stream = self._streams.setdefault(int(number), _Stream(self._client << 16 | int(number)))
        return stream


def _ends(end: Any) -> int:
    flags = ENDS.get(end) if end is None or isinstance(end, str) else None
    if flags is None:
        raise ValueError(f"end must be None, 'terminated', 'truncated' or 'boundary', not {end!r}")
    return flags

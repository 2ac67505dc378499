"""The messages of evochi.v1, without protobuf: generated classes of ours would clash with those of an installed `evochi`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .protobuf import MAX_ITEMS, CodecError, Field, decode, encode, table

__all__ = [
    "EVALUATE",
    "HELLO",
    "INITIALIZE",
    "MAX_ITEMS",
    "OPTIMIZE",
    "SERVICE",
    "SHARE_STATE",
    "STOP",
    "Answer",
    "CodecError",
    "Evaluate",
    "Evaluation",
    "Event",
    "FinishEvaluation",
    "FinishState",
    "FinishTask",
    "Heartbeat",
    "Hello",
    "Optimize",
    "ShareState",
    "Slice",
    "Subscribe",
    "Task",
    "Timestamp",
    "decode",
    "encode",
]

SERVICE = "evochi.v1.EvochiService"

# The types of events. There is no 2.
HELLO, EVALUATE, OPTIMIZE, INITIALIZE, SHARE_STATE, STOP = 1, 3, 4, 5, 6, 7


class Slice(NamedTuple):
    """The individuals from `start` to `end`, which is not included."""

    start: int
    end: int


class Evaluation(NamedTuple):
    """The rewards of one slice: a float32 array when decoded, anything numpy takes when encoded."""

    slice: Slice | None
    rewards: np.ndarray | Sequence[float]


class Hello(NamedTuple):
    """Welcomes a worker. `heartbeat_interval` is in seconds; `max_epochs` is 0 if there is no end; `state` is None for the first worker."""

    id: str
    token: str
    state: bytes | None
    population_size: int
    heartbeat_interval: int
    max_epochs: int


class Evaluate(NamedTuple):
    """Asks for the rewards of slices."""

    task_id: str
    epoch: int
    slices: Sequence[Slice]


class Optimize(NamedTuple):
    """Gives the rewards of a whole population: a float32 array when decoded."""

    task_id: str
    epoch: int
    rewards: np.ndarray | Sequence[float]


class Task(NamedTuple):
    """A task that needs nothing but its id: to initialise, or to stop."""

    task_id: str


class ShareState(NamedTuple):
    """Asks for the state of a worker."""

    task_id: str
    epoch: int


class Event(NamedTuple):
    """What a subscribed worker receives: `type` says which of the others is not None."""

    type: int
    hello: Hello | None = None
    evaluate: Evaluate | None = None
    optimize: Optimize | None = None
    initialize: Task | None = None
    share_state: ShareState | None = None
    stop: Task | None = None


class Subscribe(NamedTuple):
    """Joins: `cores` is the largest number of individuals in one task."""

    cores: int


class Timestamp(NamedTuple):
    """The time since 1970."""

    seconds: int
    nanos: int


class Heartbeat(NamedTuple):
    """Says that the worker lives; `seq_id` begins at 1."""

    seq_id: int
    timestamp: Timestamp | None


class FinishEvaluation(NamedTuple):
    """Answers Evaluate."""

    task_id: str
    evaluations: Sequence[Evaluation]


class FinishTask(NamedTuple):
    """Says that an optimisation is done."""

    task_id: str


class FinishState(NamedTuple):
    """Brings a state, the first one or the one that was asked for."""

    task_id: str
    state: bytes


class Answer(NamedTuple):
    """Answers everything but Subscribe."""

    ok: bool


def _fields(message: type[Any], *kinds: str | Field, first: int = 1) -> None:
    table(message, *(kind if isinstance(kind, Field) else Field(number, kind) for number, kind in enumerate(kinds, first)))


_fields(Slice, "int32", "int32")
_fields(Evaluation, Field(1, "message", Slice), "floats")
_fields(Hello, "string", "string", "optional bytes", "int32", "int32", "int32")
_fields(Evaluate, "string", "int32", Field(3, "messages", Slice))
_fields(Optimize, "string", "int32", "floats")
_fields(Task, "string")
_fields(ShareState, "string", "int32")
_fields(Event, "int32", *(Field(number, "message", kind, oneof=True) for number, kind in enumerate((Hello, Evaluate, Optimize, Task, ShareState, Task), 2)))
_fields(Subscribe, "int32")
_fields(Timestamp, "int64", "int32")
_fields(Heartbeat, "int32", Field(2, "message", Timestamp))
_fields(FinishEvaluation, "string", Field(2, "messages", Evaluation))
_fields(FinishTask, "string")
_fields(FinishState, "string", "bytes")
_fields(Answer, "bool")

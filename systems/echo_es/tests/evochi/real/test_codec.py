"""Our messages and those of the classes that Google's compiler made for Evochi have the same fields and the same bytes."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from echo_es.evochi import codec

THEIRS = {
    "Slice": "Slice",
    "Evaluation": "Evaluation",
    "Hello": "HelloEvent",
    "Evaluate": "EvaluateEvent",
    "Optimize": "OptimizeEvent",
    "Task": "StopEvent",
    "ShareState": "ShareStateEvent",
    "Event": "SubscribeResponse",
    "Subscribe": "SubscribeRequest",
    "Heartbeat": "HeartbeatRequest",
    "FinishEvaluation": "FinishEvaluationRequest",
    "FinishTask": "FinishOptimizationRequest",
    "FinishState": "FinishShareStateRequest",
    "Answer": "HeartbeatResponse",
}


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The generated module of Evochi, whose messages both versions share."""
    folder = str(Path(os.environ["REAL_EVOCHI_CLIENTS"]) / "0.1.4")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("evochi.v1.evochi_pb2")
    finally:
        sys.path.remove(folder)


def filled(message: Any, depth: int = 3) -> Any:
    """`message` with a value other than the default in each field."""
    for number, field in enumerate(message.DESCRIPTOR.fields, 1):
        if field.name == "rewards":
            values = [1.5, -2.0, 1e30, 0.0]
            if isinstance(message.rewards, bytes):
                message.rewards = codec.packed(values)
            else:
                message.rewards.extend(values)
        elif field.message_type is None:
            setattr(message, field.name, {str: f"text {number}", bytes: b"\0\xff", bool: True, int: 1 - 2**31 + number}[type(getattr(message, field.name))])
        elif hasattr(getattr(message, field.name), "add"):
            for _ in range(3):
                filled(getattr(message, field.name).add(), depth - 1)
        elif field.containing_oneof is None and message.DESCRIPTOR.name not in ("Event", "SubscribeResponse"):
            filled(getattr(message, field.name), depth - 1)
    return message


@pytest.mark.parametrize("name", THEIRS)
def test_the_bytes_are_those_of_evochi(theirs: Any, name: str) -> None:
    ours, other = getattr(codec, name), getattr(theirs, THEIRS[name])
    assert [(field.name, field.number) for field in ours.DESCRIPTOR.fields] == [(field.name, field.number) for field in other.DESCRIPTOR.fields]
    data = filled(other()).SerializeToString()
    assert data == filled(ours()).SerializeToString()
    assert ours.FromString(data).SerializeToString() == data
    assert other.FromString(b"") == other() and ours.FromString(b"") == ours()


@pytest.mark.parametrize(
    ("name", "kind"), [("hello", "HELLO"), ("evaluate", "EVALUATE"), ("optimize", "OPTIMIZE"), ("initialize", "INITIALIZE"), ("stop", "STOP")]
)
def test_the_bytes_of_each_event_are_those_of_evochi(theirs: Any, name: str, kind: str) -> None:
    number = getattr(codec, kind)
    assert number == getattr(theirs, f"EVENT_TYPE_{kind}")
    ours, other = codec.Event(type=number), theirs.SubscribeResponse(type=number)
    filled(getattr(ours, name))
    filled(getattr(other, name))
    assert ours.SerializeToString() == other.SerializeToString()
    assert theirs.SubscribeResponse.FromString(ours.SerializeToString()).WhichOneof("event") == name

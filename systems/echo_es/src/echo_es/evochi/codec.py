"""The messages of evochi.v1, as classes of protobuf.

They are in a pool of their own, because in protobuf's default pool they would clash with those of an installed `evochi`.

`rewards` are declared as bytes here, and as `repeated float` in Evochi's file. On the wire both are the same, a length and little-endian float32s; so
numpy reads and writes them at once (`floats`, `packed`), without a Python object for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import ArrayLike, NDArray

from echo_core import EchoError

__all__ = [
    "DIGEST",
    "EVALUATE",
    "HELLO",
    "INITIALIZE",
    "JOIN_TOKEN",
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
    "floats",
    "packed",
]

SERVICE = "evochi.v1.EvochiService"
# Metadata of calls, which Evochi's own clients and server do not know: the join token, and the digest of the state that a worker has optimised to.
JOIN_TOKEN, DIGEST = "x-echo-token", "x-echo-digest"

# The types of events. There is no 2.
HELLO, EVALUATE, OPTIMIZE, INITIALIZE, SHARE_STATE, STOP = 1, 3, 4, 5, 6, 7

# The fields of each message, whose numbers are 1, 2, 3 and so on.
MESSAGES = {
    "Slice": "int32 start, int32 end",  # the individuals from `start` to `end`, which is not included
    "Evaluation": "Slice slice, bytes rewards",
    "Hello": "string id, string token, optional bytes state, int32 population_size, int32 heartbeat_interval, int32 max_epochs",
    "Evaluate": "string task_id, int32 epoch, repeated Slice slices",
    "Optimize": "string task_id, int32 epoch, bytes rewards",
    "Task": "string task_id",  # to initialise, or to stop
    "ShareState": "string task_id, int32 epoch",
    "Event": "int32 type, Hello hello, Evaluate evaluate, Optimize optimize, Task initialize, ShareState share_state, Task stop",
    "Subscribe": "int32 cores",  # the largest number of individuals in one task
    "Timestamp": "int64 seconds, int32 nanos",
    "Heartbeat": "int32 seq_id, Timestamp timestamp",
    "FinishEvaluation": "string task_id, repeated Evaluation evaluations",
    "FinishTask": "string task_id",  # an optimisation is done
    "FinishState": "string task_id, bytes state",
    "Answer": "bool ok",  # to everything but Subscribe
}


class CodecError(EchoError):
    """The bytes are not the message that they should be."""


def _classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="echo_es/evochi.proto", package="echo_es", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, text in enumerate(fields.split(", "), 1):
            *labels, kind, field_name = text.split()
            field = message.field.add(name=field_name, number=number)
            field.label = FieldDescriptorProto.LABEL_REPEATED if "repeated" in labels else FieldDescriptorProto.LABEL_OPTIONAL
            if kind in MESSAGES:
                field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".echo_es.{kind}"
            else:
                field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
            if "optional" in labels:  # its presence is known, which proto3 says by a oneof of this field alone
                field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"echo_es.{name}")) for name in MESSAGES}


_made = _classes()
Slice, Evaluation, Subscribe, Timestamp, Heartbeat = (_made[name] for name in ("Slice", "Evaluation", "Subscribe", "Timestamp", "Heartbeat"))
Event, Hello, Evaluate, Optimize, Task, ShareState = (_made[name] for name in ("Event", "Hello", "Evaluate", "Optimize", "Task", "ShareState"))
FinishEvaluation, FinishTask, FinishState, Answer = (_made[name] for name in ("FinishEvaluation", "FinishTask", "FinishState", "Answer"))


def decode(message: Any, data: bytes) -> Any:
    """The message in `data`, of the class `message`. Raises CodecError if it is malformed."""
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise CodecError(f"these {len(data)} bytes are not a {message.DESCRIPTOR.name}: {error}") from None


def packed(rewards: ArrayLike) -> bytes:
    """Rewards for the wire."""
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, as in Evochi's client
        return np.asarray(rewards, "<f4").tobytes()


def floats(rewards: bytes) -> NDArray[np.float32]:
    """Rewards from the wire. Raises CodecError if they are cut off."""
    if len(rewards) % 4:
        raise CodecError(f"rewards have {len(rewards)} bytes, which is not a whole number of floats")
    return np.frombuffer(rewards, "<f4")

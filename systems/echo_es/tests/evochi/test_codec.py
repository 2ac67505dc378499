"""The messages of evochi.v1: what is malformed is refused. `real/test_codec.py` compares them with those of Evochi."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from searches import search

from echo_es.evochi import codec
from echo_es.evochi.codec import CodecError, decode

NAMES = list(codec.MESSAGES)


def test_rewards_come_back_as_float32() -> None:
    rewards = [1.5, -0.0, 1e300, float("nan")]
    sent = codec.Optimize(task_id="t", epoch=3, rewards=codec.packed(rewards)).SerializeToString()
    came = codec.floats(decode(codec.Optimize, sent).rewards)
    assert came.tobytes() == np.array([1.5, -0.0, np.inf, np.nan], np.float32).tobytes()
    with pytest.raises(CodecError, match="3 bytes, which is not a whole number of floats"):
        codec.floats(b"abc")


def test_an_empty_state_is_not_a_missing_one() -> None:
    for state in (b"", None):
        hello = decode(codec.Hello, codec.Hello(id="w", state=state).SerializeToString())
        assert hello.HasField("state") == (state is not None)


@given(st.binary(max_size=300), st.sampled_from(NAMES))
def test_any_bytes_are_a_message_or_an_error(data: bytes, name: str) -> None:
    try:
        decode(getattr(codec, name), data)
    except CodecError as error:
        assert f"not a {name}" in str(error)


@pytest.mark.parametrize(
    ("method", "request_bytes", "text"),
    [
        ("FinishEvaluation", b"\x12\x00" * (1 << 20), "2097152 bytes are more than the rewards of a whole population"),
        ("FinishEvaluation", b"\x0a\xff\xff", "are not a FinishEvaluation"),
        ("FinishEvaluation", b"\x12\x09\x0a\x02\x10\x01\x12\x03abc", "3 bytes, which is not a whole number of floats"),
        (
            "FinishEvaluation",
            codec.FinishEvaluation(task_id="7", evaluations=[codec.Evaluation(slice=codec.Slice(start=0, end=4))]).SerializeToString(),
            "0 rewards were",
        ),
        ("FinishOptimization", b"\x0a\x02\xff\xfe", "are not a FinishTask"),
    ],
)
def test_a_call_that_is_nonsense_is_refused(method: str, request_bytes: bytes, text: str) -> None:
    def call(name: str, message: bytes, **more: Any) -> Any:
        return channel.unary_unary(f"/{codec.SERVICE}/{name}")(message, timeout=60, **more)

    with search(8) as (front, _, _heard), grpc.insecure_channel(f"127.0.0.1:{front.port}") as channel:
        events = channel.unary_stream(f"/{codec.SERVICE}/Subscribe")(codec.Subscribe(cores=4).SerializeToString(), timeout=60)
        metadata = (("authorization", f"Bearer {decode(codec.Event, next(events)).hello.token}"),)
        with pytest.raises(grpc.RpcError) as refused:
            call(method, request_bytes, metadata=metadata)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT and text in refused.value.details()
        assert decode(codec.Answer, call("Heartbeat", b"", metadata=metadata)).ok  # the server goes on
        events.cancel()

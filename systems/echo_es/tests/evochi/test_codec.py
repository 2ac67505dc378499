"""The messages of evochi.v1: what is malformed is refused, at once and in little memory. `real/test_codec.py` compares them with Google's."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_es.evochi import codec
from echo_es.evochi.codec import CodecError, decode, encode

pytestmark = pytest.mark.every_python

MESSAGES = [codec.Event, codec.Subscribe, codec.Heartbeat, codec.FinishEvaluation, codec.FinishTask, codec.FinishState, codec.Answer]
HELLO = codec.Event(codec.HELLO, hello=codec.Hello("w", "t", b"", 10, 5, 0))
EVALUATE = codec.Event(codec.EVALUATE, evaluate=codec.Evaluate("task", 3, [codec.Slice(0, 4), codec.Slice(7, 10)]))
FINISHED = codec.FinishEvaluation("task", [codec.Evaluation(codec.Slice(0, 4), np.arange(4, dtype=np.float32))])


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return type(value)(*map(plain, value)) if hasattr(value, "_make") else [plain(item) for item in value]
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("message", [HELLO, EVALUATE, FINISHED, codec.Event(codec.STOP, stop=codec.Task("t")), codec.Heartbeat(1, codec.Timestamp(1 << 40, 7))])
def test_a_message_comes_back(message: Any) -> None:
    assert plain(decode(type(message), encode(message))) == plain(message)


def test_an_empty_state_is_not_a_missing_one() -> None:
    assert decode(codec.Event, encode(HELLO)).hello.state == b""
    assert decode(codec.Event, encode(HELLO._replace(hello=HELLO.hello._replace(state=None)))).hello.state is None


@pytest.mark.parametrize("number", [1 << 31, -(1 << 31) - 1])
def test_a_number_that_does_not_fit_is_refused(number: int) -> None:
    with pytest.raises(CodecError, match="32 bits"):
        encode(codec.Subscribe(number))


@pytest.mark.parametrize("message", [EVALUATE, FINISHED, HELLO])
def test_a_message_that_ends_too_early_is_refused(message: Any) -> None:
    whole = encode(message)
    starts = {0} if type(message) is codec.FinishEvaluation else {0, 2}  # between two fields it is a shorter message
    for end in range(len(whole)):
        try:
            decode(type(message), whole[:end])
        except CodecError:
            continue
        assert end in starts or end == len(encode(codec.FinishEvaluation("task", [])))


@pytest.mark.parametrize(
    "data",
    [
        b"\x08" + b"\xff" * 9 + b"\x7f",  # a number of more than 64 bits
        b"\x08" + b"\xff" * 100,  # a number that does not end
        b"\x12\xff\xff\xff\xff\x0f",  # 4 GiB are announced
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x00\x00",  # a field with the number 0
        b"\x0f",  # a type that does not exist
        b"\x7b" * 1000,  # a thousand groups within each other
        b"\x7b\x84\x01",  # a group with the end of another
        b"\x7c",  # a group that ends and has not begun
        b"\x0a\x02\xff\xfe",  # a text that is not UTF-8
        b"\x12\x05\x12\x03abc",  # three bytes of a float
    ],
)
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(codec.FinishEvaluation, data if data[0] != 8 else b"\x0a\x00" + data)


@given(st.binary(max_size=300), st.sampled_from(MESSAGES))
def test_any_bytes_are_a_message_or_an_error(data: bytes, message: type[Any]) -> None:
    try:
        decode(message, data)
    except CodecError:
        pass


@given(st.data(), st.sampled_from([EVALUATE, FINISHED, HELLO]))
def test_a_damaged_message_is_a_message_or_an_error(data: st.DataObject, message: Any) -> None:
    whole = bytearray(encode(message))
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4)):
        whole[place] = data.draw(st.integers(0, 255))
    try:
        decode(type(message), bytes(whole))
    except CodecError:
        pass


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (codec.FinishState, b"\x12" + b"\x80\x80\x80\x02" + bytes(4 << 20)),
        (codec.FinishEvaluation, b"\x12\x00" * (1 << 18)),  # very many empty evaluations
        (codec.FinishEvaluation, b"\x12\x80\x80\x20" + b"\x0a\x00" * (1 << 18)),  # one that is merged of very many pieces
        (codec.FinishEvaluation, b"\x12\x80\x80\x50" + b"\x15\x00\x00\x80\x3f" * (1 << 18)),  # floats that come alone
        (codec.FinishTask, b"\x0a\x80\x80\x80\x02" + b"a" * (4 << 20)),
    ],
)
def test_a_large_message_needs_little_memory(message: type[Any], data: bytes) -> None:
    tracemalloc.start()
    try:
        decode(message, data)
    except CodecError:
        pass
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2 * len(data) + codec.MAX_ITEMS * 300

"""The worker's window: gathered samples are sent without a copy, and the frame is the same either way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echo_core import Spec
from echo_core.wire.protocol import HEADER_BYTES, Kind, parse_header
from echo_grpc.connection import MessageWindow
from echo_grpc.protobuf import MAX_MESSAGE_BYTES, EncodedMessage, pack, unpack

SMALL = {"x": np.zeros(3, np.float32), "y": np.zeros((), np.int64)}
MIDDLE = {"x": np.zeros(200 << 10, np.uint8), "y": np.zeros((), np.int64)}
LARGE = {"x": np.zeros(1 << 20, np.uint8), "y": np.zeros((), np.int64)}
HUGE = {"x": np.zeros(5 << 20, np.uint8), "y": np.zeros((), np.int64)}


def window(example: Any, coalesced: int) -> MessageWindow:
    return MessageWindow(Spec.from_example(example).flattener, 64 << 20, 100_000, coalesced)


def fill(window: MessageWindow, example: Any, first: int, count: int) -> bytes:
    """Give samples to the window. Returns the payload that they would have in one frame."""
    x = np.arange(first, first + count).repeat(example["x"].size).astype(example["x"].dtype)
    y = np.arange(first, first + count)
    for i in range(count):
        assert window.gatherer.take({"x": x[i * example["x"].size : (i + 1) * example["x"].size], "y": y[i]})
    return x.tobytes() + y.tobytes()


def sent(window: MessageWindow) -> tuple[list[Any], bytes]:
    """The next frame, as `encode` makes it and as the learner reads it."""
    entries = window.next_entries()
    buffers = list(window.encode(entries, window.flags(entries)))
    messages = list(pack(buffers))
    assert all(len(message) <= MAX_MESSAGE_BYTES for message in messages)
    return buffers, b"".join(bytes(unpack(message)) for message in messages)


@pytest.mark.parametrize("example, room", [(SMALL, 50), (LARGE, 2)], ids=["small", "large"])
@pytest.mark.parametrize("missing", [0, 1])
def test_frames_are_the_same_whether_a_piece_is_full_or_not(example: Any, room: int, missing: int) -> None:
    size = sum(leaf.nbytes for leaf in example.values())
    some = window(example, room * size)
    first = 1
    for count in (room - missing, room, 1):
        payload = fill(some, example, first, count)
        buffers, data = sent(some)
        header = parse_header(data[:HEADER_BYTES], size, frozenset({Kind.DATA}))
        assert (header.seq, header.count) == (first, count)
        assert data[HEADER_BYTES:] == payload
        assert isinstance(buffers[0], EncodedMessage) == (count == room)
        first += count


def test_what_is_sent_again_is_not_copied() -> None:
    some = window(LARGE, 2 * (LARGE["x"].nbytes + 8))
    payload = fill(some, LARGE, 1, 2)
    (message,), data = sent(some)
    before = message.data
    some.resume(0)  # the connection was lost while all of it was in flight
    (message,), again = sent(some)
    assert message.data is before
    assert again == data and data[HEADER_BYTES:] == payload


def test_samples_larger_than_a_message_travel_in_pieces() -> None:
    some = window(HUGE, 1 << 20)
    assert not some.small
    some.add(1, bytes(HUGE["x"].nbytes) + bytes(8))
    buffers, data = sent(some)
    assert not isinstance(buffers[0], EncodedMessage)
    assert len(data) == HEADER_BYTES + HUGE["x"].nbytes + 8


def test_pieces_that_are_told_to_be_larger_than_a_message_are_cut() -> None:
    some = window(MIDDLE, 8 << 20)
    payload = fill(some, MIDDLE, 1, some.gatherer.room)
    _, data = sent(some)
    assert len(payload) > MAX_MESSAGE_BYTES and data[HEADER_BYTES:] == payload


def test_large_samples_fill_no_message() -> None:
    assert window(MIDDLE, 4 << 20).gatherer.room == (4 << 20) // (200 * 1024 + 8)
    assert window(LARGE, 4 << 20).gatherer.room == 2
    assert window(LARGE, 1 << 20).gatherer.room == 1  # never more than the limit

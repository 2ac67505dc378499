"""The worker's samples until they are acknowledged."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_core.base.errors import ProtocolError
from echo_core.spec.spec import Spec
from echo_core.wire.protocol import LABEL_BYTES, LABELS, MORE, Kind, parse_header
from echo_net.channel.window import Window

pytestmark = pytest.mark.needs("echo-samplers")


@given(st.data())
def test_the_window_resends_exactly_what_is_not_acknowledged(data: st.DataObject) -> None:
    """Against a learner that commits any part of what was sent, at any time, in order."""
    spec = Spec.from_example({"a": np.zeros(2, np.uint8), "b": np.zeros(0), "c": np.zeros(3, np.uint8)})
    window = Window(spec.flattener, max_bytes=100, most=30, coalesce_bytes=40)
    taken = committed = delivered = newest = asked = 0  # the newest that was ever sent; the last that asked for an acknowledgement

    def payload(first: int, count: int) -> bytes:
        numbers = np.arange(first, first + count, dtype=np.uint8)
        return numbers.repeat(2).tobytes() + numbers.repeat(3).tobytes()

    told: dict[int, bytes] = {}  # the labels of samples that have some

    def labelled() -> bool:
        return data.draw(st.booleans())

    for _ in range(data.draw(st.integers(0, 40))):
        step = data.draw(st.sampled_from(["add", "gather", "send", "ack", "resume"]))
        count = data.draw(st.integers(1, 12))
        if step == "add" and taken + count < 250:
            under_way = taken - window.acknowledged
            if window.has_room(count):
                assert not under_way or under_way + count <= 20
                numbers = range(taken + 1, taken + count + 1)
                given = b"".join(bytes([n]) * LABEL_BYTES for n in numbers) if labelled() else None
                window.add(count, payload(taken + 1, count), given)
                told |= {n: bytes([n]) * LABEL_BYTES for n in numbers if given}
                taken += count
        elif step == "gather" and taken + count < 250:
            for _ in range(count):
                room = taken - window.acknowledged < 20
                x = np.full(3, taken + 1, np.uint8)
                label = bytes([taken + 1]) * LABEL_BYTES if labelled() else None
                answer = window.gatherer.take({"a": x[:2], "b": np.zeros(0), "c": x}, label)
                assert bool(answer) == room
                taken += room
                if room and label:
                    told[taken] = label
        elif step == "send" and (entries := window.next_entries()):
            last, flags = entries[-1].last, window.flags(entries)
            if flags & MORE:  # the learner may keep silent
                assert last < taken, "nothing follows that would be acknowledged"
                assert last - asked < 20 // 4, "too much of the window waits for an acknowledgement"
            else:
                asked = last
            data_frame = b"".join(window.encode(entries, flags))
            read = parse_header(data_frame, 5, frozenset({Kind.DATA}))
            expected = payload(read.seq, read.count)
            if read.flags & LABELS:
                expected += b"".join(told.get(n, b"\xff" * LABEL_BYTES) for n in range(read.seq, read.seq + read.count))
            else:
                assert not any(n in told for n in range(read.seq, read.seq + read.count))
            assert data_frame[24:] == expected
            assert read.seq <= delivered + 1, "a gap"
            delivered = max(delivered, read.seq + read.count - 1)
            newest = max(newest, delivered)
        elif step == "ack":
            committed = data.draw(st.integers(committed, delivered))
            window.acknowledge(committed)
            with pytest.raises(ProtocolError):
                window.acknowledge(newest + 1)
        elif step == "resume":
            committed = data.draw(st.integers(committed, delivered))
            window.resume(committed)
            delivered = asked = committed
            if again := window.next_entries():
                assert again[0].first <= committed + 1 <= again[0].last
                delivered = again[-1].last
                newest = max(newest, delivered)
        assert (window.taken, window.acknowledged) == (taken, committed)
    window.resume(committed)
    flags = 0
    while entries := window.next_entries():
        flags = window.flags(entries)
    assert not flags & MORE, "what was sent last is never acknowledged"
    window.acknowledge(taken)
    assert window.has_room(1) and window.acknowledged == taken


def test_a_batch_stays_behind_the_samples_of_its_thread() -> None:
    """Also while another thread's sample is being copied, which keeps theirs from being collected."""

    class Wide(Window):
        gathered_bytes = 1 << 20

    example = np.zeros(25_000, np.int64)
    window = Wide(Spec.from_example(example).flattener, max_bytes=1 << 40, most=1 << 20, coalesce_bytes=1 << 20)
    lock, over = threading.Lock(), threading.Event()

    def flood() -> None:
        while not over.is_set():
            window.gatherer.take(example)

    others = threading.Thread(target=flood)
    others.start()
    came = [0]
    try:
        for number in range(1, 201, 2):
            window.gatherer.take(np.full_like(example, number))
            with lock:
                window.add(1, np.full_like(example, number + 1).tobytes())
                while came[-1] != number + 1:
                    entries = window.next_entries()
                    came += [n for entry in entries for n in np.frombuffer(entry.payload(), np.int64)[:: len(example)].tolist() if n]
                    window.acknowledge(entries[-1].last)
    finally:
        over.set()
        others.join()
    assert came == list(range(201))


def test_a_session_that_went_on_before_counts_what_is_gathered_already() -> None:
    """The worker of a client_id that was used before has taken samples over before it met the learner, which has some of that id."""
    spec = Spec.from_example(np.zeros(2, np.uint8))
    for number in (1, 2, 3, 7):
        window = Window(spec.flattener, max_bytes=100, most=30)
        for _ in range(3):
            window.gatherer.take(np.ones(2, np.uint8))
        window.resume(number)
        assert (window.acknowledged, window.taken) == (number, number + 3)
        (entry,) = window.next_entries()
        assert (entry.first, entry.count, window.flags([entry])) == (number + 1, 3, 0)
        window.acknowledge(number + 3)
        assert window.taken == window.acknowledged

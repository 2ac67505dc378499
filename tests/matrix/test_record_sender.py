"""What a worker sends for samples of varying length, over every installed transport: whole records, as chunks of one size.

The learner here stores the chunks themselves, and the tests join them as record_format.hpp describes them.
"""

from __future__ import annotations

import signal
import struct
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from echo_core import Client, ConfigError, EchoTimeoutError, Ragged, Server, SpecError
from echo_core.plugins import discovery
from echo_core.spec.ragged import CHUNK_BYTES, CHUNK_HEAD_BYTES, RaggedSpec
from echo_replay.steps.steps import client_number

TRANSPORTS = [record.name for record in discovery.installed(discovery.TRANSPORTS) if not record.disabled]
over_every_transport = pytest.mark.parametrize("transport_table", TRANSPORTS, indirect=True)
EXAMPLE = {"tokens": Ragged("i4", most=200_000), "boxes": Ragged("f4", (2,), "box", 9), "reward": np.float32(0), "id": np.int64(0)}
SPEC = RaggedSpec.from_example(EXAMPLE)
NOTHING = 2**64 - 1
PAYLOAD = CHUNK_BYTES - CHUNK_HEAD_BYTES


class Record(NamedTuple):
    sample: dict[str, Any]
    priority: int
    version: int


def sample(number: int, t: int, boxes: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(number)
    return {"tokens": random.integers(0, 1000, t, np.int32), "boxes": random.random((boxes, 2), np.float32), "reward": number / 2, "id": number}


def server_of(transport: dict[str, Any], buffers: int = 2000) -> Server:
    return Server(SPEC.chunk_spec, batch_size=1, num_buffers=buffers, transport=transport)


def chunks_in(server: Server, count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield server.sample(timeout=30).batch[0].tobytes()


def joined(chunks: Iterator[bytes]) -> list[Record]:
    """The records of these chunks. Fails if one is cut off or the numbers of a stream have a gap."""
    records, open_records, last = [], {}, {}
    for chunk in chunks:
        used, flags, stream = struct.unpack_from("=IIQ", chunk)
        worker, number = stream >> 16, stream & 0xFFFF
        assert 0 < used <= PAYLOAD
        assert not chunk[CHUNK_HEAD_BYTES + used :].strip(b"\0"), "old memory travels behind the record"
        assert number == last.get(worker, -1) + 1 & 0xFFFF
        last[worker] = number
        assert bool(flags & 1) == (worker not in open_records), "a record was cut off"
        open_records[worker] = open_records.get(worker, b"") + chunk[CHUNK_HEAD_BYTES : CHUNK_HEAD_BYTES + used]
        if flags & 2:
            records.append(read(open_records.pop(worker)))
        else:
            assert used == PAYLOAD
    assert not open_records
    return records


def read(record: bytes) -> Record:
    *lengths, priority, version = struct.unpack_from("=4I2Q", record)
    assert lengths[2:] == [0, 0]
    assert len(record) == SPEC.record_bytes(lengths[:2])
    at, leaves = 32, []
    for leaf in SPEC.leaves:
        shape = leaf.shape if leaf.axis < 0 else (lengths[leaf.axis], *leaf.shape)
        count = int(np.prod(shape))
        leaves.append(np.frombuffer(record, leaf.dtype, count, at).reshape(shape))
        at += count * leaf.dtype.itemsize
    return Record(SPEC.flattener.unflatten(leaves), priority, version)


def assert_same(records: list[Record], samples: list[dict[str, Any]]) -> None:
    assert [int(record.sample["id"]) for record in records] == [one["id"] for one in samples]
    for record, one in zip(records, samples):
        for name in one:
            np.testing.assert_array_equal(record.sample[name], one[name])


@over_every_transport
def test_records_of_every_length_arrive_whole_and_in_order(transport_table: dict[str, Any]) -> None:
    # From nothing to more than a frame of any transport, and to both sides of the end of a chunk.
    lengths = [0, 1, 237, 238, 239, 240, 241, 490, 491, 492, 493, 5000, 200_000]
    samples = [sample(i, t, i % 10) for i, t in enumerate(lengths)]
    batch = [sample(100 + i, 10 * i, i % 10) for i in range(16)]
    with server_of(transport_table) as server, Client(server.address, EXAMPLE, client_id="ab" * 16) as client:
        for one in samples:
            client.send(one)
        client.send_batch(batch)
        client.send_batch(tuple(batch))
        client.send_batch([])
        client.wait()
        stats = client.stats()
        assert (stats["samples"], stats["acknowledged"], stats["unacknowledged"], client.unacknowledged) == (45, 45, 0, 0)
        count = sum(-(-SPEC.record_bytes([len(one["boxes"]), len(one["tokens"])]) // PAYLOAD) for one in [*samples, *batch, *batch])
        assert (stats["chunks"], stats["chunks_acknowledged"], stats["chunks_unacknowledged"]) == (count, count, 0)
        chunks = list(chunks_in(server, count))
        assert {struct.unpack_from("=IIQ", chunk)[2] >> 16 for chunk in chunks} == {client_number("ab" * 16)}
        assert_same(joined(iter(chunks)), [*samples, *batch, *batch])


@over_every_transport
def test_labels_are_in_the_header(transport_table: dict[str, Any]) -> None:
    def bits(priority: float) -> int:
        return int(np.float64(priority).view(np.uint64))

    with server_of(transport_table) as server, Client(server.address, EXAMPLE) as client:
        client.send(sample(0, 3))
        client.send(sample(1, 3), priority=2.5)
        client.send(sample(2, 3), priority=0.0, policy_version=7)
        client.policy_version = 8
        client.send(sample(3, 3))
        client.send_batch([sample(4, 3), sample(5, 4)], priorities=[1.0, 3.0])
        client.send_batch([sample(6, 3)], policy_version=9)
        for wrong in ({"priority": -1.0}, {"priority": float("nan")}, {"policy_version": -1}):
            with pytest.raises(ValueError, match=r"must be"):
                client.send(sample(9, 3), **wrong)
        with pytest.raises(ValueError, match="priorities"):
            client.send_batch([sample(9, 3), sample(9, 3)], priorities=[1.0])
        client.wait()
        records = joined(chunks_in(server, 7))
        assert [(record.priority, record.version) for record in records] == [
            (NOTHING, NOTHING),
            (bits(2.5), NOTHING),
            (bits(0.0), 7),
            (NOTHING, 8),
            (bits(1.0), 8),
            (bits(3.0), 8),
            (NOTHING, 9),
        ]


@over_every_transport
def test_a_sample_that_does_not_fit_is_refused_by_the_name_of_its_leaf_and_nothing_is_sent(transport_table: dict[str, Any]) -> None:
    wrong = [
        ({"tokens": np.zeros(3, "i8")}, "leaf 'tokens' must be int32, got int64"),
        ({"tokens": np.zeros(200_001, "i4")}, "leaf 'tokens' has 200001 rows, and 't' is at most 200000"),
        ({"boxes": np.zeros((10, 2), "f4")}, "leaf 'boxes' has 10 rows, and 'box' is at most 9"),
        ({"boxes": np.zeros((2, 3), "f4")}, r"leaf 'boxes' must have shape \(box, 2\)"),
        ({"reward": np.zeros(1, "f4")}, "leaf 'reward' must have shape"),
        ({"more": 1}, "'more' is not in the example"),
    ]
    with server_of(transport_table) as server, Client(server.address, EXAMPLE) as client:
        for changes, words in wrong:
            with pytest.raises(SpecError, match=words):
                client.send({**sample(1, 3), **changes})
            with pytest.raises(SpecError, match=f"sample 1 of the batch: .*{words}"):
                client.send_batch([sample(1, 3), {**sample(1, 3), **changes}])
        with pytest.raises(SpecError, match="takes a list of samples"):
            client.send_batch(sample(1, 3))
        with pytest.raises(ConfigError, match="vary in length"):
            client.reserve()
        with pytest.raises(ConfigError, match="belong to tables of steps"):
            client.send(sample(1, 3), end="terminated")
        client.send(sample(2, 3))
        client.wait()
        assert client.stats()["chunks"] == 1
        assert_same(joined(chunks_in(server, 1)), [sample(2, 3)])


def test_leaves_of_one_axis_have_one_length() -> None:
    spec = RaggedSpec.from_example({"a": Ragged("i4"), "b": Ragged("f4", (2,)), "c": Ragged("u1", axis="other")})
    from echo_core.spec.pytree.ragged_flattener import RaggedFlattener

    good = {"a": np.zeros(3, "i4"), "b": np.zeros((3, 2), "f4"), "c": np.zeros(7, "u1")}
    assert RaggedFlattener(spec).check(good) == {"t": 3, "other": 7}
    with pytest.raises(SpecError, match="leaf 'b' has 4 rows, but leaf 'a' has 3; leaves of the axis 't'"):
        RaggedFlattener(spec).check({**good, "b": np.zeros((4, 2), "f4")})


@over_every_transport
def test_both_ends_refuse_another_example_by_the_name_of_a_leaf(transport_table: dict[str, Any]) -> None:
    with server_of(transport_table) as server:
        for changes, words in (
            ({"boxes": Ragged("f4", (2,), "box", 8)}, "leaf 'boxes' is"),
            ({"reward": np.float64(0)}, "leaf 'reward' is"),
            ({"tokens": np.zeros(4, "i4"), "boxes": np.zeros((9, 2), "f4")}, "leaf '(boxes|tokens)' is"),
        ):
            with pytest.raises(SpecError, match=words):
                Client(server.address, {**EXAMPLE, **changes}, timeout=5)
        with Client(server.address, EXAMPLE) as client:
            client.send(sample(2, 3))
            client.wait()
            assert_same(joined(chunks_in(server, 1)), [sample(2, 3)])


@over_every_transport
@pytest.mark.parametrize("how", ["timeout", "interrupt"])
def test_a_record_that_finds_no_room_in_time_is_not_sent_at_all(transport_table: dict[str, Any], how: str) -> None:
    taken = []
    with server_of(transport_table, buffers=16) as server, Client(server.address, EXAMPLE, window_bytes=32 << 10) as client:

        def refused(number: int, timeout: float) -> bool:
            given = [sample(1000 * number + i, 1500) for i in range(3)]  # 6 chunks each
            try:
                client.send_batch(given, timeout)
            except (EchoTimeoutError, KeyboardInterrupt):
                return True
            taken.extend(given)
            return False

        old = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            number = 0
            while number < 100:
                if how == "interrupt":
                    signal.setitimer(signal.ITIMER_REAL, 0.3)
                if refused(number, 0.3 if how == "timeout" else 30):
                    break
                signal.setitimer(signal.ITIMER_REAL, 0)
                number += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        assert 0 < number < 100, "the store and the window must have been full"
        later = threading.Thread(target=lambda: (refused(500, 30), client.wait(30)))
        later.start()
        records = joined(chunks_in(server, 18 * (number + 1)))
        later.join()
        assert_same(records, taken)
        assert client.stats()["samples"] == 3 * (number + 1)


@over_every_transport
def test_records_of_several_threads_do_not_mix(transport_table: dict[str, Any]) -> None:
    with server_of(transport_table, buffers=64) as server, Client(server.address, EXAMPLE) as client:

        def send(first: int) -> None:
            for i in range(20):
                client.send(sample(first + i, 700))
                client.send_batch([sample(first + 100 + i, 300), sample(first + 200 + i, 300)])

        threads = [threading.Thread(target=send, args=(first,)) for first in (0, 1000, 2000)]
        for thread in threads:
            thread.start()
        records = joined(chunks_in(server, 3 * 20 * (3 + 2 * 2)))
        for thread in threads:
            thread.join()
        assert_same(sorted(records, key=lambda record: int(record.sample["id"])), sorted((record.sample for record in records), key=lambda one: one["id"]))
        assert sorted(int(record.sample["id"]) for record in records) == sorted(
            first + more + i for first in (0, 1000, 2000) for more in (0, 100, 200) for i in range(20)
        )
        for record in records:
            number = int(record.sample["id"])
            np.testing.assert_array_equal(record.sample["tokens"], sample(number, len(record.sample["tokens"]))["tokens"])

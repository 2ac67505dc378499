"""Clauses about samples of varying length: records arrive whole, in order and once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import echo_core
from echo_core.base.errors import SpecError
from echo_core.spec.ragged_leaf import Ragged

from ..rig import PATIENCE, Rig
from . import carrier

Needs = Callable[[str], None]

MOST = 200_000  # rows of 4 bytes: such a record is larger than a message of most transports
EXAMPLE = {"tokens": Ragged(np.int32, most=MOST), "boxes": Ragged(np.float32, (2,), "box", 9), "number": np.int64(0)}
#: At both sides of the end of a chunk, and of every size from nothing to the most.
LENGTHS = [0, 1, 237, 238, 239, 240, 241, 242, 5000, 30_000, MOST]


def record(number: int, length: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    return {"tokens": random.integers(0, 1 << 20, length, np.int32), "boxes": random.random((number % 10, 2), np.float32), "number": number}


def records(first: int, count: int) -> list[dict[str, Any]]:
    return [record(first + i, LENGTHS[i % len(LENGTHS)]) for i in range(count)]


def check(sample: Any, expected: list[dict[str, Any]]) -> None:
    """Fail unless the items of a drawn sample are these, in this order."""
    assert sample.batch["number"].tolist() == [one["number"] for one in expected]
    assert sample.lengths["t"].tolist() == [len(one["tokens"]) for one in expected]
    for i, one in enumerate(expected):
        row = sample.row(i)
        for name in ("tokens", "boxes"):
            np.testing.assert_array_equal(row[name], one[name])


@carrier
class RecordClauses:
    """The table of these clauses is a queue."""

    def _queue(self, rig: Rig, batch_size: int, **options: Any) -> Any:
        table = echo_core.Table("records", EXAMPLE, capacity=1000, max_bytes=64 << 20, sampler="fifo", rate_limiter=echo_core.Queue(1000), **options)
        return rig.server(tables=[table], batch_size=batch_size)

    def test_records_of_every_length_arrive_whole_and_in_order(self, rig: Rig) -> None:
        server = self._queue(rig, 22)
        client = rig.client(server, EXAMPLE)
        for one in records(0, 11):
            client.send(one)
        client.send_batch(records(11, 11))
        client.wait()
        stats = client.stats()
        assert (stats["samples"], stats["acknowledged"], client.unacknowledged) == (22, 22, 0)
        check(server.sample(PATIENCE), records(0, 11) + records(11, 11))

    def test_labels_of_records_reach_the_table(self, rig: Rig) -> None:
        table = echo_core.Table("records", EXAMPLE, capacity=1000, max_bytes=64 << 20, sampler="prioritized", policy_versions=True)
        server = rig.server(tables=[table], batch_size=4)
        client = rig.client(server, EXAMPLE)
        client.send(record(1, 300), priority=2.0, policy_version=3)
        client.send_batch([record(2, 0), record(3, 5)], priorities=[5.0, 1.0], policy_version=4)
        client.wait()
        keys, priorities = server.table("records").top(3)
        np.testing.assert_allclose(priorities, [5, 2, 1], rtol=1e-6)
        assert server.table("records").peek(keys)[0].batch["number"].tolist() == [2, 1, 3]

    def test_a_client_draws_records_that_are_smaller_and_larger_than_a_message(self, rig: Rig) -> None:
        server = self._queue(rig, 1, lease_timeout=600.0)
        client = rig.client(server, EXAMPLE)
        client.send_batch(records(0, 11) + records(11, 11))
        small, large = client.sample(3, PATIENCE), client.sample(19, PATIENCE)
        check(small, records(0, 11)[:3])
        check(large, records(0, 11)[3:] + records(11, 11))
        assert client.ack(small.keys) == 3
        assert client.table().delete(large.keys) == 19

    def test_another_example_of_records_is_refused_by_the_name_of_a_leaf(self, rig: Rig) -> None:
        server = self._queue(rig, 1)
        for changes, words in (
            ({"boxes": Ragged(np.float32, (2,), "box", 8)}, "'boxes'"),
            ({"number": np.float32(0)}, "'number'"),
            ({"tokens": np.zeros(4, np.int32), "boxes": np.zeros((9, 2), np.float32)}, "'(boxes|tokens)'"),
        ):
            with pytest.raises(SpecError, match=words):
                rig.client(server, {**EXAMPLE, **changes})
        client = rig.client(server, EXAMPLE)
        client.send(record(1, 300))
        check(server.sample(PATIENCE), [record(1, 300)])

    def test_a_record_that_does_not_fit_is_refused_and_nothing_of_it_is_sent(self, rig: Rig) -> None:
        server = self._queue(rig, 2)
        client = rig.client(server, EXAMPLE)
        client.send(record(1, 300))
        for changes, words in (
            ({"tokens": np.zeros(MOST + 1, np.int32)}, f"leaf 'tokens' has {MOST + 1} rows"),
            ({"tokens": np.zeros(3)}, "leaf 'tokens' must be int32"),
        ):
            with pytest.raises(SpecError, match=words):
                client.send({**record(2, 3), **changes})
            with pytest.raises(SpecError, match=f"sample 1 of the batch: {words}"):
                client.send_batch([record(2, 3), {**record(2, 3), **changes}])
        client.send(record(3, 300))
        check(server.sample(PATIENCE), [record(1, 300), record(3, 300)])

    @pytest.mark.parametrize("reset", [False, True])
    def test_a_cut_link_loses_and_doubles_no_record(self, rig: Rig, needs: Needs, reset: bool) -> None:
        needs("severable")
        server = self._queue(rig, 10)
        client = rig.client(server, EXAMPLE)
        seen: list[int] = []
        for turn in range(4):
            sent = [record(100 * turn + i, LENGTHS[i]) for i in range(10)]
            for i, one in enumerate(sent):
                client.send(one)
                if i == 5:
                    self.sever(server, client, reset)
            client.wait(PATIENCE)
            sample = server.sample(PATIENCE)
            check(sample, sent)
            seen += sample.batch["number"].tolist()
        assert len(set(seen)) == 40
        assert server.stats()["table/records/inserts"] == 40

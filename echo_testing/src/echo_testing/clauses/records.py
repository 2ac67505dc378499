"""Clauses about samples of varying length: records arrive whole, in order and once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import echo_core
from echo_core.base.errors import ConnectionClosedError, EchoTimeoutError, SpecError
from echo_core.client.leftovers import Leftover
from echo_core.spec.ragged_leaf import Ragged

from .. import workers
from ..processes import until
from ..rig import PATIENCE, Rig, hear
from ..samples import MOST_ROWS, RECORD_EXAMPLE, RECORD_LENGTHS, record, record_table, records
from . import carrier

Needs = Callable[[str], None]

def check(sample: Any, expected: list[dict[str, Any]]) -> None:
    """Fail unless the items of a drawn sample are these, in this order."""
    assert sample.batch["number"].tolist() == [one["number"] for one in expected]
    assert sample.lengths["t"].tolist() == [len(one["tokens"]) for one in expected]
    for i, one in enumerate(expected):
        row = sample.row(i)
        for name in ("tokens", "boxes"):
            np.testing.assert_array_equal(row[name], one[name])


def check_left(left: Leftover, first: int, end: int) -> None:
    """Fail unless these are the records from number `first` to before `end`, with their labels."""
    assert [int(one["number"]) for one in left.samples] == list(range(first, end)) and len(left) == end - first
    assert left.priorities is not None and left.policy_versions is not None
    np.testing.assert_array_equal(left.priorities, [float(n) if n % 2 else np.nan for n in range(first, end)])
    assert left.policy_versions.tolist() == [n if n % 2 else -1 for n in range(first, end)]
    for number, one in zip(range(first, end), left.samples):
        for name, array in record(number, RECORD_LENGTHS[number % 10]).items():
            np.testing.assert_array_equal(one[name], array)


@carrier
class RecordClauses:
    """The table of these clauses is a queue."""

    def _queue(self, rig: Rig, batch_size: int, **options: Any) -> Any:
        return rig.server(tables=[record_table(**options)], batch_size=batch_size)

    def test_records_of_every_length_arrive_whole_and_in_order(self, rig: Rig) -> None:
        server = self._queue(rig, 22)
        client = rig.client(server, RECORD_EXAMPLE)
        for one in records(0, 11):
            client.send(one)
        client.send_batch(records(11, 11))
        client.wait()
        stats = client.stats()
        assert (stats["samples"], stats["acknowledged"], client.unacknowledged) == (22, 22, 0)
        check(server.sample(PATIENCE), records(0, 11) + records(11, 11))

    def test_labels_of_records_reach_the_table(self, rig: Rig) -> None:
        table = echo_core.Table("records", RECORD_EXAMPLE, capacity=1000, max_bytes=64 << 20, sampler="prioritized", policy_versions=True)
        server = rig.server(tables=[table], batch_size=4)
        client = rig.client(server, RECORD_EXAMPLE)
        client.send(record(1, 300), priority=2.0, policy_version=3)
        client.send_batch([record(2, 0), record(3, 5)], priorities=[5.0, 1.0], policy_version=4)
        client.wait()
        keys, priorities = server.table("records").top(3)
        np.testing.assert_allclose(priorities, [5, 2, 1], rtol=1e-6)
        assert server.table("records").peek(keys)[0].batch["number"].tolist() == [2, 1, 3]

    def test_a_client_draws_records_that_are_smaller_and_larger_than_a_message(self, rig: Rig) -> None:
        server = self._queue(rig, 1, lease_timeout=600.0)
        client = rig.client(server, RECORD_EXAMPLE)
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
                rig.client(server, {**RECORD_EXAMPLE, **changes})
        client = rig.client(server, RECORD_EXAMPLE)
        client.send(record(1, 300))
        check(server.sample(PATIENCE), [record(1, 300)])

    def test_a_record_that_does_not_fit_is_refused_and_nothing_of_it_is_sent(self, rig: Rig) -> None:
        server = self._queue(rig, 2)
        client = rig.client(server, RECORD_EXAMPLE)
        client.send(record(1, 300))
        for changes, words in (
            ({"tokens": np.zeros(MOST_ROWS + 1, np.int32)}, f"leaf 'tokens' has {MOST_ROWS + 1} rows"),
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
        client = rig.client(server, RECORD_EXAMPLE)
        seen: list[int] = []
        for turn in range(4):
            sent = [record(100 * turn + i, RECORD_LENGTHS[i]) for i in range(10)]
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

    @pytest.mark.parametrize("lends", [True, False])
    def test_a_link_that_is_lost_between_the_parts_of_a_drawn_batch(self, rig: Rig, needs: Needs, lends: bool) -> None:
        """A queue that lends gives the same items again. The items of one that does not are gone, and the error says so."""
        needs("severable")
        server = self._queue(rig, 1, **({"lease_timeout": 600.0} if lends else {}))
        client = rig.client(server, RECORD_EXAMPLE)
        sent = [record(i, MOST_ROWS) for i in range(5)]  # 4 MB, in several messages
        client.send_batch(sent)
        client.wait(PATIENCE)
        table, parts = client.table(), []
        send = table._send

        def cutting(op: str, n: int, **body: Any) -> Any:
            parts.append(body["start"])
            if len(parts) == 3:
                self.sever(server, client, False)
                until(lambda: client.stats()["reconnects"] > 0 or not client.stats()["connected"], "the client has noticed it")
            return send(op, n, **body)

        table._send = cutting  # type: ignore[method-assign]
        if lends:
            drawn = table.sample(5, PATIENCE)
            assert sorted(drawn.batch["number"].tolist()) == [0, 1, 2, 3, 4] and parts.count(0) == 2
            for i, number in enumerate(drawn.batch["number"].tolist()):
                np.testing.assert_array_equal(drawn.row(i)["tokens"], sent[number]["tokens"])
            assert table.ack(drawn.keys, PATIENCE) == 5
        else:
            with pytest.raises(ConnectionClosedError, match="was carried out"):
                table.sample(5, PATIENCE)
        client.send(record(7, 20))
        check(client.sample(1, PATIENCE), [record(7, 20)])

    def test_items_are_looked_up_and_inserted_over_a_link_that_is_cut(self, rig: Rig, needs: Needs) -> None:
        needs("severable")
        server = self._queue(rig, 1)
        client = rig.client(server, RECORD_EXAMPLE)
        table = client.table()
        keys = table.insert(records(0, 11), timeout=PATIENCE)
        self.sever(server, client, True)
        found, here = table.peek(keys, PATIENCE)
        assert here.all()
        check(found, records(0, 11))
        assert len(server.table()) == 11

    def test_records_that_were_not_delivered_are_handed_out_and_sent_again(self, rig: Rig) -> None:
        server = self._queue(rig, 1)
        client = rig.client(server, RECORD_EXAMPLE, timeout=PATIENCE)
        client.send(record(0, 5))
        client.wait()
        server.close(timeout=1, restarting=True)
        until(lambda: not client.stats()["connected"], "the client has noticed it")
        for number in range(12):
            labels = {"priority": float(number), "policy_version": number} if number % 2 else {}
            client.send(record(number, RECORD_LENGTHS[number % 10]), **labels)
        (left,) = client.close(leftovers=True)
        assert (left.table, left.cut) == (None, 0)
        check_left(left, 0, 12)
        (same,) = client.close(leftovers=True)
        check_left(same, 0, 12)
        server = rig.server(tables=[record_table(policy_versions=True)], batch_size=12)
        again = rig.client(server, RECORD_EXAMPLE)
        again.policy_version = 50  # it does not make these samples
        again.send_again(left)
        again.wait()
        check(server.sample(PATIENCE), [record(number, RECORD_LENGTHS[number % 10]) for number in range(12)])

    def test_errors_call_chunks_chunks(self, rig: Rig) -> None:
        server = self._queue(rig, 1)
        client = rig.client(server, RECORD_EXAMPLE, timeout=PATIENCE)
        client.send(record(0, 5))
        client.wait()
        server.close(timeout=1, restarting=True)
        until(lambda: not client.stats()["connected"], "the client has noticed it")
        client.send(record(1, 300))
        with pytest.raises((ConnectionClosedError, EchoTimeoutError), match=r"2 chunks \(1 KiB each\) of samples not acknowledged"):
            client.close(0)

    def test_a_learner_that_is_killed_leaves_every_record_but_one_that_it_has_in_part(self, rig: Rig) -> None:
        heard, saying = rig.pipe()
        learner = rig.spawn(workers.keep_records, str(rig.place()), saying, self.listen_options())  # type: ignore[attr-defined]
        client = rig.client(hear(heard), RECORD_EXAMPLE, timeout=PATIENCE)
        client.send(record(0, 5), policy_version=0)
        client.wait()
        count = 40
        for number in range(1, count):
            labels = {"priority": float(number), "policy_version": number} if number % 2 else {}
            client.send(record(number, RECORD_LENGTHS[number % 10]), **labels)
            if number == 30:
                os.kill(learner.pid or 0, signal.SIGKILL)  # in the middle of them
        learner.join(PATIENCE)
        until(lambda: not client.stats()["connected"], "the client has noticed it")
        (left,) = client.close(leftovers=True)
        acknowledged = client.stats()["acknowledged"]
        assert left.cut in (0, 1) and acknowledged + left.cut + len(left) == count
        check_left(left, acknowledged + left.cut, count)
        server = rig.server(tables=[record_table()], batch_size=len(left))
        again = rig.client(server, RECORD_EXAMPLE)
        again.send_again(left)
        check(server.sample(PATIENCE), left.samples)

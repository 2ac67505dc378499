"""Clauses about samples that were not delivered: a client hands them out, with their labels and tables, and another client sends them again."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import echo_core
from echo_core.base.errors import ClosedError, ConfigError, ConnectionClosedError
from echo_core.client.client import Client
from echo_core.client.leftovers import Leftover
from echo_core.server.server import Server
from echo_core.wire.reservation import Reservation

from ... import workers
from ...processes import until
from ...rig import PATIENCE, Rig, hear
from ...samples import assert_same, example, sample, stacked
from .. import carrier

COUNT = 60  # samples for each of two tables


def _send(client: Client, count: int = COUNT) -> None:
    """Send samples for two tables in turn. Most of the first table's have priorities, and each of the second's has a priority and a version."""
    for number in range(1, count + 1):
        client.send(sample(1, number), priority=None if number % 4 == 0 else float(number))
        client.send(sample(2, number), table="second", priority=1000.0 + number, policy_version=number)


def _check(left: list[Leftover], acknowledged: dict[str | None, int], count: int = COUNT) -> None:
    """Check that what is left is all that was not acknowledged, in order and with its labels."""
    assert [part.table for part in left] == [table for table in (None, "second") if acknowledged[table] < count]
    for part in left:
        numbers = part.samples["number"].tolist()
        assert numbers == list(range(acknowledged[part.table] + 1, count + 1)) and len(part) == len(numbers)
        assert set(part.samples["maker"].tolist()) == {1 if part.table is None else 2}
        assert part.priorities is not None and part.policy_versions is not None
        if part.table is None:
            expected = [np.nan if number % 4 == 0 else number for number in numbers]
            assert set(part.policy_versions.tolist()) == {-1}
        else:
            expected = [1000.0 + number for number in numbers]
            assert part.policy_versions.tolist() == numbers
        np.testing.assert_array_equal(part.priorities, expected)


def _check_stored(server: Server, least: int = 1, count: int = COUNT) -> None:
    """Check that both tables have all samples from number `least` on, each in its own table with its own labels."""
    for name, maker, more in (("first", 1, 0.0), ("second", 2, 1000.0)):
        table = server.table(name)
        keys, priorities = table.top(count)
        stored = table.peek(keys)[0]
        numbers = stored["number"].tolist()
        assert sorted(numbers) == list(range(least, count + 1)) and set(stored["maker"].tolist()) == {maker}
        given = {n: p for n, p in zip(numbers, priorities.tolist()) if maker == 2 or n % 4}
        assert given == {n: more + n for n in given}
    assert server.table("second").policy_versions()[0].tolist() == list(range(least, count + 1))


def _fill(client: Client, number: int) -> Reservation | None:
    """A reserved slot with a sample, which is not committed. None if the learner has the memory of all slots, and is gone."""
    try:
        slot = client.reserve(timeout=0)
    except ConnectionClosedError:
        return None
    for name, value in sample(1, number).items():
        slot.sample[name][...] = value
    return slot


def _commit(client: Client, number: int) -> int | None:
    """Make a sample in place. Returns its number, or None as `_fill` does."""
    slot = _fill(client, number)
    if slot is None:
        return None
    slot.commit()
    return number


def _without_learner(rig: Rig) -> tuple[Server, Client]:
    """A client that was connected to two tables of a learner which is gone."""
    server = rig.server(tables=workers.labelled_tables(), batch_size=4)
    client = rig.client(server, tables={"second": example()}, timeout=PATIENCE)
    client.send(sample(1, 0))
    client.send(sample(2, 0), table="second")
    client.wait()
    server.close(timeout=1, restarting=True)
    until(lambda: not any(outlet.raw.stats()["connected"] for outlet in client._outlets.open()), "the client has noticed it")
    return server, client


@carrier
class LeftoverClauses:
    def test_samples_that_were_not_delivered_are_handed_out_and_sent_again(self, rig: Rig) -> None:
        _, client = _without_learner(rig)
        _send(client)
        left = client.close(leftovers=True)  # without a timeout, it does not wait for a learner that is gone
        _check(left, {None: 0, "second": 0})
        _check(client.close(leftovers=True), {None: 0, "second": 0})
        server = rig.server(tables=workers.labelled_tables(), batch_size=4)
        again = rig.client(server, tables={"second": example()})
        for part in left:
            again.send_again(part)
        again.wait()
        _check_stored(server)
        first, second = (server.table(name) for name in ("first", "second"))
        assert first.peek(first.keys())[0]["number"].tolist() == second.peek(second.keys())[0]["number"].tolist() == list(range(1, COUNT + 1))

    def test_a_client_that_has_delivered_everything_has_no_leftovers(self, rig: Rig) -> None:
        server = rig.server(tables=workers.labelled_tables(), batch_size=4)
        client = rig.client(server, tables={"second": example()})
        _send(client)
        assert client.close(PATIENCE, leftovers=True) == []
        _check_stored(server)

    def test_leftovers_of_a_stream_have_no_labels(self, rig: Rig) -> None:
        server = rig.server(batch_size=4)
        client = rig.client(server, timeout=PATIENCE)
        client.send(sample(1, 0))
        client.wait()
        server.close(timeout=1, restarting=True)
        until(lambda: not client.stats()["connected"], "the client has noticed it")
        client.send(sample(1, 1))
        client.send_batch(stacked(1, 2, 9))
        (left,) = client.close(leftovers=True)
        assert (left.table, left.labels, left.priorities, left.policy_versions) == (None, None, None, None)
        assert left.samples["number"].tolist() == list(range(1, 11))
        assert left.samples["filler"].dtype == example()["filler"].dtype and left.samples["filler"].shape[1:] == example()["filler"].shape

    def test_samples_that_were_made_in_place_are_handed_out(self, rig: Rig) -> None:
        server = rig.server(batch_size=4)
        client = rig.client(server, timeout=PATIENCE)
        client.send(sample(1, 0))
        client.wait()
        server.close(timeout=1, restarting=True)
        until(lambda: not client.stats()["connected"], "the client has noticed it")
        given = [_commit(client, number) for number in (1, 2, 3)]
        held = _fill(client, 90)  # it is never committed, and may lie behind committed ones
        given.append(_commit(client, 4))
        if (aborted := _fill(client, 91)) is not None:
            aborted.abort()
        given.append(_commit(client, 5))
        for number in (6, 7, 8):
            client.send(sample(1, number))
        (left,) = client.close(leftovers=True)
        assert sorted(left.samples["number"].tolist()) == [number for number in given if number is not None] + [6, 7, 8]
        order = left.samples["number"].tolist()
        assert [number for number in order if number >= 6] == [6, 7, 8], "reserved slots have no order, and those of send() have one"
        for row, number in enumerate(order):
            assert_same({name: array[row] for name, array in left.samples.items()}, sample(1, number))
        (same,) = client.close(leftovers=True)
        assert same.samples["number"].tolist() == order
        if held is not None:
            with pytest.raises(ClosedError):
                held.commit()

    def test_steps_are_not_handed_out(self, rig: Rig) -> None:
        server = rig.server(tables=[echo_core.Table("steps", example(), capacity=64, sampler="fifo", items=echo_core.Sequences(2))], batch_size=1)
        client = rig.client(server, tree=echo_core.Steps(example()))
        client.send(sample(1, 0))
        with pytest.raises(ConfigError, match="steps cannot be handed out as leftovers"):
            client.close(leftovers=True)
        client.wait()  # the client is open still

    def test_a_learner_that_is_killed_leaves_every_other_sample_to_the_next(self, rig: Rig) -> None:
        heard, saying = rig.pipe()
        learner = rig.spawn(workers.keep, str(rig.place()), saying, self.listen_options())  # type: ignore[attr-defined]
        client = rig.client(hear(heard), tables={"second": example()}, timeout=PATIENCE)
        client.send(sample(1, 0))
        client.send(sample(2, 0), table="second")
        client.wait()
        count = 2000
        _send(client, count // 2)
        os.kill(learner.pid or 0, signal.SIGKILL)  # in the middle of them
        for number in range(count // 2 + 1, count + 1):
            client.send(sample(1, number), priority=None if number % 4 == 0 else float(number))
            client.send(sample(2, number), table="second", priority=1000.0 + number, policy_version=number)
        learner.join(PATIENCE)
        until(lambda: not any(outlet.raw.stats()["connected"] for outlet in client._outlets.open()), "the client has noticed it")
        left = client.close(leftovers=True)
        acknowledged = {outlet.table: outlet.raw.stats()["acknowledged"] - 1 for outlet in client._outlets.open()}
        _check(left, acknowledged, count)
        server = rig.server(tables=workers.labelled_tables(count), batch_size=4)
        again = rig.client(server, tables={"second": example()})
        for part in left:
            again.send_again(part)
        again.wait()
        for part in left:
            stored = server.table(part.table or "first")
            assert stored.peek(stored.keys())[0]["number"].tolist() == part.samples["number"].tolist()
            keys, priorities = stored.top(len(part))
            found = zip(stored.peek(keys)[0]["number"].tolist(), priorities.tolist())
            more = 0.0 if part.table is None else 1000.0
            assert all(priority == more + number for number, priority in found if part.table or number % 4)
        if (versions := [part.policy_versions for part in left if part.table]) and versions[0] is not None:
            assert server.table("second").policy_versions()[0].tolist() == versions[0].tolist()

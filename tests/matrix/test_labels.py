"""Priorities and policy versions travel with samples over every installed transport."""

from __future__ import annotations

import re
import weakref
from typing import Any

import numpy as np
import pytest

from echo_core import Client, ClosedError, ConfigError, Sequences, Server, SpecError, Steps, Table
from echo_core.base.errors import UnknownTableError
from echo_core.plugins import discovery

TRANSPORTS = [record.name for record in discovery.installed(discovery.TRANSPORTS) if not record.disabled]
EXAMPLE = {"number": np.int64(0), "filler": np.zeros(5, np.float32)}
over_every_transport = pytest.mark.parametrize("transport_table", TRANSPORTS, indirect=True)


def items(start: int, stop: int) -> dict:
    return {"number": np.arange(start, stop), "filler": np.zeros((stop - start, 5), np.float32)}


def tables(**options: Any) -> list[Table]:
    first = Table("first", {"x": np.zeros(3)}, capacity=100, sampler="uniform")
    return [first, Table("replay", EXAMPLE, capacity=1000, sampler="prioritized", seed=1, **options)]


@over_every_transport
def test_priorities_arrive_with_their_samples(transport_table: dict[str, Any]) -> None:
    with (
        Server(tables=tables(), batch_size=32, transport=transport_table) as server,
        Client(server.address, EXAMPLE, table="replay") as client,
    ):
        client.send_batch(items(0, 10))
        for i in range(10, 20):
            client.send({"number": np.int64(i), "filler": np.zeros(5, np.float32)}, priority=float(i))
        client.send_batch(items(20, 120), table="replay", priorities=np.arange(20, 120))
        client.send_batch(items(120, 130))
        client.wait()
        table = server.table("replay")
        keys, priorities = table.top(130)
        given = table.peek(keys)[0]["number"]
        told = (given >= 10) & (given < 120)
        np.testing.assert_allclose(priorities[told], given[told], rtol=1e-6)
        assert told.sum() == 110
        # One sender's samples stay in order, with and without labels.
        assert table.peek(table.keys())[0]["number"].tolist() == [*range(130)]


@over_every_transport
def test_clients_that_named_no_table_send_labels_too(transport_table: dict[str, Any]) -> None:
    replay = {"sampler": "prioritized", "capacity": 1000}
    with Server(EXAMPLE, batch_size=32, transport=transport_table, **replay) as server, Client(server.address, EXAMPLE) as client:
        send = client.send  # as loops keep it
        send({"number": np.int64(0), "filler": np.zeros(5, np.float32)})
        send({"number": np.int64(1), "filler": np.zeros(5, np.float32)}, priority=7.0)
        send({"number": np.int64(2), "filler": np.zeros(5, np.float32)})
        client.send_batch(items(3, 6), priorities=[3.0, 4.0, 5.0])
        client.send_batch(items(6, 9))
        client.wait()
        table = server.table()
        assert table.peek(table.keys())[0]["number"].tolist() == [*range(9)]
        keys, _ = table.top(9)
        assert table.peek(keys)[0]["number"].tolist().index(1) < 5  # new ones without a priority have the largest so far
        with pytest.raises(ValueError, match="must be finite and not negative"):
            send(EXAMPLE, priority=-1.0)
        with pytest.raises(ConfigError, match="end belong to tables of steps: give the client Steps"):
            send(EXAMPLE, end="terminated")
        with pytest.raises(UnknownTableError, match="no example for table 'others'"):
            client.send_batch(items(0, 1), table="others")
        client.wait()
        assert len(table) == 9
    with Server(EXAMPLE, batch_size=2, transport=transport_table) as server, Client(server.address, EXAMPLE) as client:
        with pytest.raises(ConfigError, match="priorities or policy versions need a replay table, and this learner has none, it streams"):
            client.send(EXAMPLE, priority=1.0)
        client.send_batch(items(0, 2))
        assert server.sample(timeout=30).batch["number"].tolist() == [0, 1]


@over_every_transport
def test_reserved_slots_of_a_table_get_the_version_of_the_client(transport_table: dict[str, Any]) -> None:
    with (
        Server(tables=tables(policy_versions=True), batch_size=32, transport=transport_table) as server,
        Client(server.address, EXAMPLE, table="replay") as client,
    ):
        client.policy_version = 3
        with pytest.raises(ValueError, match="policy_version must be a whole number"):
            client.policy_version = -1
        for number in range(4):
            with client.reserve() as slot:
                slot.sample["number"][...] = number
                slot.sample["filler"][...] = 0
                slot.commit()
        with client.reserve() as slot:
            slot.sample["number"][...] = 99  # and not committed
        with pytest.raises(ValueError, match="committed or aborted already"):
            slot.commit()
        client.wait()
        table = server.table("replay")
        assert sorted(table.peek(table.keys())[0]["number"].tolist()) == [0, 1, 2, 3]
        assert table.policy_versions()[0].tolist() == [3]


@over_every_transport
def test_steps_have_no_labels(transport_table: dict[str, Any]) -> None:
    steps = Table("steps", EXAMPLE, capacity=100, sampler="uniform", items=Sequences(2))
    with Server(tables=[steps], batch_size=2, transport=transport_table) as server, Client(server.address, Steps(EXAMPLE)) as client:
        with pytest.raises(ConfigError, match="steps have no priority and no policy version; items get priorities"):
            client.send(EXAMPLE, priority=1.0)
        with pytest.raises(ConfigError, match="steps have no priorities and no policy versions"):
            client.send_batch(items(0, 2), priorities=[1.0, 2.0])
        client.send(EXAMPLE, stream=1)
        client.send(EXAMPLE, end="terminated", stream=1)
        client.send_batch(items(0, 2), ends=[None, "terminated"], stream=3)
        client.wait()
        assert len(server.table()) == 2


@over_every_transport
def test_a_dropped_client_is_gone_at_once(transport_table: dict[str, Any]) -> None:
    with Server(EXAMPLE, batch_size=2, transport=transport_table) as server:
        client = Client(server.address, EXAMPLE)
        client.send(EXAMPLE)
        client.wait()
        client.close()
        with pytest.raises(ClosedError):
            client.send(EXAMPLE)
        with pytest.raises(ClosedError):
            client.send_batch(items(0, 2))
        gone = weakref.ref(client)
        del client
        assert gone() is None


@over_every_transport
@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_bad_priorities_are_refused_by_the_client(transport_table: dict[str, Any], bad: float) -> None:
    with (
        Server(tables=tables(), batch_size=32, transport=transport_table) as server,
        Client(server.address, EXAMPLE, table="replay") as client,
    ):
        priorities = np.ones(10)
        priorities[7] = bad
        with pytest.raises(ValueError, match="sample 7 must be finite and not negative; nothing was inserted"):
            client.send_batch(items(0, 10), priorities=priorities)
        with pytest.raises(ValueError, match="must be finite and not negative"):
            client.send(EXAMPLE, priority=bad)
        client.send_batch(items(0, 10), priorities=np.ones(10))
        client.wait()
        assert len(server.table("replay")) == 10


@over_every_transport
def test_bad_priorities_are_refused_by_the_table_too(
    transport_table: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from echo_core.wire import labels

    with Server(tables=tables(), batch_size=32, transport=transport_table) as server:
        with Client(server.address, EXAMPLE, table="replay") as client:
            # A client that does not look.
            monkeypatch.setattr(labels, "new_priorities", lambda given, n: np.asarray(given, np.float64))
            client.send_batch(items(0, 5), priorities=np.array([1.0, -1.0, np.nan, np.inf, 2.0]))
            client.send_batch(items(5, 50), priorities=np.ones(45))
            client.wait()
        table = server.table("replay")
        assert sorted(table.peek(table.keys())[0]["number"].tolist()) == [0, 4, *range(5, 50)]
        assert server.stats()["table/replay/refused"] == 3
        sample = server.sample(10, table="replay")
        assert np.isfinite(sample.weights).all()
        last = server.stats()["table/replay/refused_last"]
        assert re.fullmatch(r"priority (-1\.0|nan|inf) of sample [123] is negative or not finite", last)
        assert "table 'replay' refused 3 samples of workers: priority" in caplog.text


@over_every_transport
def test_versions_arrive_with_their_samples(transport_table: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with Server(tables=tables(policy_versions=True), batch_size=32, transport=transport_table) as server:
        # The client finds out by itself that the table keeps versions, as its own and as one of several.
        with Client(server.address, EXAMPLE, table="replay") as client:
            client.send_batch(items(0, 10))
            client.wait()
            assert server.table("replay").policy_versions()[0].tolist() == [0]
            server.publish({"w": np.zeros(2)})
            server.publish({"w": np.ones(2)})
            assert client.weights(newer_than=1).version == 2
            client.send_batch(items(10, 30))
            client.send({"number": np.int64(30), "filler": np.zeros(5, np.float32)}, policy_version=1)
            client.policy_version = 7
            client.send_batch(items(31, 40), priorities=np.ones(9))
            client.wait()
            versions, counts = server.table("replay").policy_versions()
            assert dict(zip(versions.tolist(), counts.tolist())) == {0: 10, 2: 20, 1: 1, 7: 9}
            sample = client.sample(64, timeout=30)
            made_by = {**dict.fromkeys(range(10), 0), **dict.fromkeys(range(10, 30), 2), 30: 1, **dict.fromkeys(range(31, 40), 7)}
            assert sample.info.policy_versions.tolist() == [made_by[i] for i in sample.batch["number"].tolist()]
            assert sample.info.policy_version == 2
        with Client(server.address, {"x": np.zeros(3)}, tables={"replay": EXAMPLE}) as client:
            client.send({"x": np.zeros(3)})
            client.send_batch(items(40, 50), table="replay", policy_version=5)
            client.wait()
            assert server.table("replay").policy_versions()[0].tolist() == [0, 1, 2, 5, 7]
            assert len(server.table("first")) == 1
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        if transport_table["type"] == "rdma":  # which says over what it goes in its place
            warnings = [text for text in warnings if "no RDMA" not in text]
        assert not warnings  # as if they had known at once


@over_every_transport
def test_another_spec_is_still_refused_by_leaf(transport_table: dict[str, Any]) -> None:
    with Server(tables=tables(policy_versions=True), batch_size=32, transport=transport_table) as server:
        with pytest.raises(SpecError, match="filler"):
            Client(server.address, {**EXAMPLE, "filler": np.zeros(4, np.float32)}, table="replay", timeout=10)
        with Client(server.address, EXAMPLE, table="replay") as client, pytest.raises(SpecError, match="leaf 'filler'"):
            client.send({"number": np.int64(0), "filler": np.zeros(4, np.float32)})
        assert len(server.table("replay")) == 0

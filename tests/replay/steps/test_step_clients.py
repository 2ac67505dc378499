"""Clients of tables of items over steps."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from step_tables import STEP, step

from echo_core import Client, ConfigError, MinSize, NStep, Sequences, Server, Slices, Steps, Table
from echo_core.base.errors import EchoError, SpecError

pytestmark = pytest.mark.needs("echo-samplers")


@pytest.mark.needs("echo-tcp")
def test_clients_of_tables_of_steps() -> None:
    steps = pickle.loads(pickle.dumps(Steps(STEP)))
    plain = Table("plain", STEP, capacity=10, sampler="uniform")
    made = Table("steps", STEP, capacity=100, items=NStep(1), sampler="uniform")
    with Server(tables=[made, plain], batch_size=2, transport="tcp://127.0.0.1:0") as server:
        with Client(server.address, steps, tables={"plain": STEP}) as client:
            client.send(step(1))
            client.send(step(2), table="plain")
            client.send(step(3), end="terminated")
            client.wait()
            assert len(server.table("plain")) == 1 and len(server.table("steps")) == 2
            with pytest.raises(ConfigError, match="only tables of steps"):
                client.end_episode(table="plain")
            with pytest.raises(ConfigError, match="no insert"):
                client.table().insert({"obs": np.zeros((1, 2)), "reward": np.zeros(1)})
            with pytest.raises(ConfigError, match="no order"):
                client.reserve()
            with pytest.raises(EchoError, match="stores steps"):
                client.request("insert", {"n": 1}, bytes(28))
            with pytest.raises(EchoError, match="does not store steps"):
                client.request("layout", {"table": "plain"})
            copy = pickle.loads(pickle.dumps(client))
            copy.send(step(4))
            copy.wait()
            assert server.stats()["table/steps/streams"] == 1
            copy.close()
        with Client(server.address, Steps(STEP)) as client:
            for wrong, words in (({"obs": np.zeros(3, np.float32)}, r"^leaf 'obs' must have shape \(2,\)"), ({"reward": None}, "'reward'")):
                with pytest.raises(SpecError, match=words):
                    client.send({**step(1), **wrong})
            with pytest.raises(SpecError, match=r"^'reward' is missing"):
                client.send({"obs": step(1)["obs"]})
        with pytest.raises(SpecError, match=r"the learner are steps of episodes and those here are plain samples; .* given Steps\(example\)") as refused:
            Client(server.address, STEP)
        assert "'echo'" not in str(refused.value)
        with pytest.raises(SpecError, match=r"steps of episodes .* plain samples; .* any other table the example itself"):
            Client(server.address, Steps(STEP), table="plain")
        with pytest.raises(SpecError, match=r"leaf 'obs' is float32 \(3,\) here but float32 \(2,\) at the learner"):
            Client(server.address, Steps({**STEP, "obs": np.zeros(3, np.float32)}))


@pytest.mark.needs("echo-tcp")
@pytest.mark.parametrize("client_id", ["0" * 31 + "1", "f" * 32])
def test_streams_are_numbered_by_any_integer(client_id: str) -> None:
    table = Table("steps", STEP, capacity=100, items=NStep(1), sampler="uniform")
    server = Server(tables=[table], batch_size=2, transport="tcp://127.0.0.1:0").start()
    with server, Client(server.address, Steps(STEP), table="steps", client_id=client_id) as client:
        for kind in (int, np.int64, np.int32, np.uint8, np.uint64):
            client.send(step(1), stream=kind(3))
            client.send(step(2), stream=kind(3))
            client.end_episode(stream=kind(3))
        client.wait()
        assert len(server.table()) == 5  # one a kind: their streams are the same one


@pytest.mark.needs("echo-tcp")
def test_items_larger_than_a_message() -> None:
    example = {"frame": np.zeros((512, 512), np.uint8), "number": np.int64(0)}
    tables = [
        Table("windows", example, capacity=12, items=Sequences(5, period=2), sampler="prioritized", rate_limiter=MinSize(2)),
        Table("slices", example, capacity=8, items=Slices(5), sampler="uniform"),
    ]
    server = Server(tables=tables, batch_size=1, transport="tcp://127.0.0.1:0")
    with server, Client(server.start().address, Steps(example), tables={"slices": Steps(example)}) as client:
        for i in range(12):
            client.send({"frame": np.full((512, 512), i, np.uint8), "number": np.int64(i)}, end="terminated" if i == 11 else None)
        client.wait()
        sample = client.sample(3, timeout=30)
        assert sample.batch["frame"].shape == (3, 5, 512, 512) and sample.weights.max() == 1
        np.testing.assert_array_equal(sample.batch["frame"], np.broadcast_to(sample.batch["number"][..., None, None], (3, 5, 512, 512)))
        assert (np.diff(sample.batch["number"], axis=1)[sample.mask[:, 1:]] == 1).all()
        assert client.update_priorities(sample.keys, np.ones(3)) == 0
        gone = server.table().keys()[0]
        server.table().delete([gone])
        assert client.request("item", {"n": 8, "key": int(gone), "leaf": 1, "start": 0})[0] == {"gone": True}
        for wrong in ({"leaf": 9}, {"start": 33}, {"key": -1}, {"start": "0"}, {"n": 0}):
            with pytest.raises(EchoError):
                client.request("item", {"n": 8, "key": 1, "leaf": 1, "start": 0, **wrong})
        for i in range(12):
            client.send({"frame": np.full((512, 512), i, np.uint8), "number": np.int64(i)}, table="slices", end="terminated" if i == 11 else None)
        client.wait()
        sliced = client.sample(2, table="slices", timeout=30).batch
        np.testing.assert_array_equal(sliced["frame"], np.broadcast_to(sliced["number"][..., None, None], sliced["frame"].shape))

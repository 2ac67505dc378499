"""Steps over every installed transport: interleaved episodes come out whole, and a killed worker's open ones are cut off."""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import Client, NStep, Sequences, Server, Steps, Table
from echo_core.plugins import discovery
from echo_testing import workers
from echo_testing.samples import Tally, example, sample, stacked

TRANSPORTS = [record.name for record in discovery.installed(discovery.TRANSPORTS) if not record.disabled]

spawning = multiprocessing.get_context("spawn")
pytestmark = pytest.mark.needs("echo-samplers")


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(discovery.transport_class(request.param).Options)}
    place = {"host": "127.0.0.1", "port": 0, "path": str(tmp_path / "socket")}
    return {"type": request.param, **{name: value for name, value in place.items() if name in known}}


def soon(what: Any) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def whole(batch: dict[str, Any], mask: np.ndarray) -> None:
    """Every step is one that was sent, and follows the one before."""
    tally = Tally()
    rows = {key: value[mask] for key, value in batch.items()}
    tally.add(rows)
    number, maker = batch["number"], batch["maker"]
    follows = mask[:, 1:] & mask[:, :-1]
    assert (np.diff(number.astype(np.int64), axis=1)[follows] == 1).all() and (np.diff(maker.astype(np.int64), axis=1)[follows] == 0).all()


def test_workers_stream_steps_and_learners_draw_windows(transport: dict[str, Any]) -> None:
    items = Sequences(6, period=3, burn_in=2)
    tables = [
        Table("windows", example(), capacity=5000, items=items, sampler="prioritized"),
        Table("queue", {"reward": np.zeros(1, np.float64)}, capacity=100, items=NStep(2, gamma=0.5), sampler="uniform"),
    ]
    environments, length = 3, 20
    with Server(tables=tables, batch_size=16, transport=transport) as server:
        killed = []
        for maker in (1, 2):
            here, there = spawning.Pipe()
            process = spawning.Process(target=workers.wander, args=(str(server.address), maker, environments, length, there, {}))
            process.start()
            killed.append((process, here))
        with Client(server.address, Steps(example()), tables={"queue": Steps({"reward": np.zeros(1)})}) as client:
            for number in range(length):
                client.send(sample(0, number), end="boundary" if number == length - 1 else None)
            client.send_batch(stacked(0, 2000, 7), stream=5)
            for i in range(5):
                client.send({"reward": np.full(1, i, np.float64)}, table="queue")
            client.end_episode(table="queue")
            client.wait()
            for process, pipe in killed:
                assert pipe.poll(60) and pipe.recv() == "ready"
                process.kill()
                process.join(60)
                process.close()
            table = server.table("windows")
            soon(lambda: table.stats()["streams"] == 1)  # mine is open still
            stats = table.stats()
            assert stats["steps"] == 2 * environments * (2 * length + length // 2) + length + 7
            assert stats["episodes"] == 2 * environments * 3 + 1 and stats["truncated"] == 2 * environments + 1
            for _ in range(5):
                drawn = server.sample(timeout=30)
                whole(drawn.batch, drawn.mask)
                assert server.update_priorities(drawn.keys, np.random.rand(16) + 0.1) == 0
            drawn, here = table.peek(table.keys())
            assert here.all()
            whole(drawn.batch, drawn.mask)
            assert int((drawn.ends == 2).sum()) == 2 * environments  # the killed ones' windows end where they died

            far = client.sample(40, timeout=30)
            whole(far.batch, far.mask)
            assert far.mask.shape == far.ends.shape == (40, 8) and far.weights.max() == 1
            assert client.update_priorities(far.keys, np.ones(40)) == 0
            for i, far in enumerate(client.dataset_iter(4)):
                whole(far.batch, far.mask)
                if i == 3:
                    break
            step = client.sample(8, timeout=30, table="queue")
            reward = step.batch["reward"]
            k = np.minimum(2, 4 - reward)
            np.testing.assert_array_equal(step.returns, reward + 0.5 * (reward + 1) * (k > 1))
            np.testing.assert_array_equal(step.next["reward"], reward + k)
            np.testing.assert_allclose(step.discounts, 0.5 ** k[:, 0])
            assert not step.terminated.any()


@pytest.mark.parametrize("role", ["observer", "worker of another table"])
def test_a_client_that_sent_nothing_ends_no_episode_of_a_worker_with_its_id(transport: dict[str, Any], role: str) -> None:
    tables = [Table("steps", example(), capacity=100, items=Sequences(4), sampler="uniform"), Table("rows", example(), capacity=10, sampler="uniform")]
    with Server(tables=tables, batch_size=1, transport=transport) as server:
        table = server.table("steps")
        with Client(server.address, Steps(example()), table="steps", client_id="ab" * 16) as worker:
            for number in range(3):
                worker.send(sample(0, number))
            worker.wait()
            connect = discovery.transport_class(server.address.scheme).connect
            token = server._tokens()[0] if server._tokens() else None
            if role == "observer":
                other = connect(server.address, Steps(example()).wire, role="observer", client_id="ab" * 16, table="steps", token=token)
            else:
                other = connect(server.address, server.table("rows").spec, client_id="ab" * 12 + "00" * 4, table="rows", token=token)
            soon(lambda: len(server.peers()) == 2)
            other.close()
            soon(lambda: len(server.peers()) == 1)
            worker.send(sample(0, 3))
            worker.wait()
            assert (table.stats()["streams"], table.stats()["truncated"], len(table)) == (1, 0, 1)
            assert server.sample(timeout=30).batch["number"].tolist() == [[0, 1, 2, 3]]
        soon(lambda: table.stats()["streams"] == 0)

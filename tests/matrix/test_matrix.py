"""Every installed transport with every installed sampler, found by entry points, end to end."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.client.observer import Observer
from echo_core.plugins import discovery
from echo_testing import workers
from echo_testing.samples import Tally, example, stacked

TRANSPORTS = [record.name for record in discovery.installed(discovery.TRANSPORTS) if not record.disabled]
SAMPLERS = [record.name for record in discovery.installed(discovery.SAMPLERS) if not record.disabled]

spawning = multiprocessing.get_context("spawn")


@pytest.fixture
def sampler_table(request: pytest.FixtureRequest) -> dict[str, Any]:
    replays = discovery.sampler_class(request.param).storage == "replay"
    return {"type": request.param, "capacity": 2000} if replays else {"type": request.param}


def every(storage: str) -> pytest.MarkDecorator:
    samplers = [name for name in SAMPLERS if discovery.sampler_class(name).storage == storage]
    pairs = [(transport, sampler) for transport in TRANSPORTS for sampler in samplers]
    return pytest.mark.parametrize(("transport_table", "sampler_table"), pairs, indirect=True, ids=lambda value: str(value))


@every("replay")
def test_experience_is_drawn_again_and_again(transport_table: dict[str, Any], sampler_table: dict[str, Any]) -> None:
    each = 300
    with Server(example(), 20, transport_table, sampler=sampler_table) as server:
        worker = spawning.Process(target=workers.flood, args=(str(server.address), 1, each, 1, {}))
        worker.start()
        with Client(server.address, example(), name="here") as client:
            client.send_batch(stacked(0, 0, each))
            client.wait()
            worker.join(60)
            assert worker.exitcode == 0
            worker.close()
            assert client.server_stats()["table/default/size"] == 2 * each
            drawn = Tally()
            for _ in range(10):
                sample = server.sample(timeout=30)
                drawn.add(sample.batch)
                assert server.update_priorities(sample.keys, np.ones(20)) == 0
            drawn.add(client.sample(20, timeout=30).batch)
            assert drawn.count == 220 and set(drawn.numbers) <= {0, 1}


@every("stream")
def test_experience_up_and_weights_down(
    transport_table: dict[str, Any], sampler_table: dict[str, Any]
) -> None:
    makers, each = 3, 300
    with Server(example(), 20, transport_table, sampler=sampler_table) as server:
        server.publish({"w": np.arange(70_000.0)})
        processes = [
            spawning.Process(target=workers.flood, args=(str(server.address), maker, each, maker, {}))
            for maker in range(1, makers)
        ]
        for process in processes:
            process.start()
        with Client(server.address, example(), name="here") as client:
            client.send_batch(stacked(0, 0, each))
            tally = Tally()
            while tally.count < makers * each:
                tally.add(server.sample(timeout=60).batch)
            tally.check(dict.fromkeys(range(makers), each))
            assert client.weights().params["w"][-1] == 69_999.0
            assert client.server_stats()["store/samples_inserted_total"] == makers * each
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
            process.close()


@every("stream")
def test_samples_are_looked_at_from_outside_and_stay(transport_table: dict[str, Any], sampler_table: dict[str, Any]) -> None:
    with Server(example(), 20, transport_table, sampler=sampler_table) as server, Client(server.address, example()) as client:
        client.send_batch(stacked(0, 0, 30))
        client.wait()
        with Observer(server.address) as observer:
            assert [int(seen["number"]) for seen in observer.tap(5, timeout=30).samples] == [25, 26, 27, 28, 29]
            assert observer.stats()["store/samples"] == 30
        tally = Tally()
        client.send_batch(stacked(0, 30, 10))
        tally.add(server.sample(timeout=60).batch)
        tally.add(server.sample(timeout=60).batch)
        tally.check({0: 40})


@every("stream")
def test_all_of_it_from_a_configuration(
    transport_table: dict[str, Any], sampler_table: dict[str, Any], tmp_path: Path
) -> None:
    def toml(table: dict[str, Any]) -> str:
        pairs = (f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in table.items())
        return "{ " + ", ".join(pairs) + " }"

    config = tmp_path / "echo.toml"
    config.write_text(
        f"[server]\nbatch_size = 4\nnum_buffers = 5\nsampler = {toml(sampler_table)}\n"
        f"transport = {toml(transport_table)}\n[client]\nname = 'from a file'\n"
    )
    with Server.from_config(config, example()) as server:
        assert (server.batch_size, server.num_buffers) == (4, 5)
        with Client.from_config(config, example(), address=server.address) as client:
            client.send_batch(stacked(1, 0, 8))
            tally = Tally()
            tally.add(server.sample(timeout=30).batch)
            tally.add(server.sample(timeout=30).batch)
            tally.check({1: 8})
            assert server.peers()[0].name == "from a file"


def test_what_is_installed_can_be_used() -> None:
    """No plugin of this environment is broken, in conflict, or of another API."""
    for group in (discovery.TRANSPORTS, discovery.SAMPLERS, discovery.OBSERVERS):
        for record in discovery.default.examine(group):
            assert record.error is None, record.error


def test_several_transports_share_a_server() -> None:
    if not TRANSPORTS:
        pytest.skip("no transport is installed")
    tables = [{"type": name, "port": 0} for name in TRANSPORTS if name == "tcp"] * 2
    if not tables:
        pytest.skip("tcp is not installed")
    with Server(example(), 4, tables) as server:
        first, second = server.addresses
        with Client(first, example()) as one, Client(second, example()) as two:
            one.send_batch(stacked(1, 0, 8))
            one.wait()
            two.send_batch(stacked(2, 0, 4))
            tally = Tally()
            for _ in range(3):
                tally.add(server.sample(timeout=30).batch)
            tally.check({1: 8, 2: 4})
            server.publish({"w": np.ones(3)})
            assert one.weights().version == two.weights().version == 1
            assert len(server.peers()) == 2

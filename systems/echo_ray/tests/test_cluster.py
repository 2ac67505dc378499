"""One cluster on two nodes of Ray: it comes up, heals, scales, drains and ends, and its token is not shown. The tests belong together, in their order."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import echo_ray
from echo_core import ConfigError, EchoTimeoutError

sys.path.insert(0, os.path.dirname(__file__))
from work import CONFIG, EXAMPLE, ITEMS, items, nearness, send_some, until


@pytest.fixture(scope="module")
def cluster(ray_nodes: Any) -> Iterator[Any]:
    threads = set(threading.enumerate())
    with echo_ray.up(CONFIG, send_some) as launched:
        yield launched
    until(lambda: not {thread for thread in threading.enumerate() if thread not in threads and thread.name.startswith("echo")})


def test_all_is_up_and_every_item_is_drawn(cluster: Any) -> None:
    until(lambda: items(cluster) == 2 * ITEMS)
    learner = cluster.learner(EXAMPLE, seed=1)
    until(lambda: learner.stats()["items"] == 2 * ITEMS)
    found: set[tuple[int, int]] = set()
    for _ in range(100):
        sample = learner.sample(160)
        assert sample.batch["near"].all(), "a worker that shares its host with a shard uses shared memory"
        sizes = {number: shard.size for number, shard in enumerate(learner.shards) if shard.size}
        assert sample.info.shards.keys() <= sizes.keys()
        for number, count in sample.info.shards.items():
            assert abs(count - 160 * sizes[number] / (2 * ITEMS)) < 1
        found |= set(zip(sample.batch["worker"].tolist(), sample.batch["number"].tolist()))
        if len(found) == 2 * ITEMS:
            break
    assert len(found) == 2 * ITEMS and {number for _, number in found} == set(range(ITEMS))
    learner._end()
    nodes = {row["node"] for row in cluster.status()["shards"]}
    assert len(nodes) == 2, "each shard has a node of its own"


def test_a_second_one_needs_another_name_and_room(cluster: Any) -> None:
    with pytest.raises(ConfigError, match="runs on this Ray cluster already"):
        echo_ray.up(CONFIG, send_some)
    with pytest.raises(EchoTimeoutError, match=r"no room within 1 s for 2 bundles with 17 CPUs each .* the nodes of Ray have 6 CPUs"):
        echo_ray.up({**CONFIG, "cluster": {"shards": 2, "workers": {"min": 1, "max": 64}}}, send_some, name="large", timeout=1)


def test_a_shard_that_is_killed_comes_back_with_its_checkpoint(cluster: Any) -> None:
    until(lambda: all((Path(folder) / f"checkpoint-{n}").exists() for n, folder in enumerate(folders(cluster))))
    threading.Event().wait(1.0)  # so that the checkpoints have all
    before, port = cluster.status()["shards"][0], cluster.members()[0].addresses[0]
    learner = cluster.learner(EXAMPLE)
    os.kill(before["pid"], signal.SIGKILL)
    until(lambda: cluster.status()["shards"][0]["life"] != before["life"])
    until(lambda: cluster.status()["shards"][0]["state"] == "up")
    after = cluster.status()["shards"][0]
    assert after["tables"]["replay"]["size"] == before["tables"]["replay"]["size"]
    assert cluster.members()[0].addresses[0] == port
    until(lambda: all(shard.state == "up" for shard in learner.shards))
    assert not learner.sample(16).info.degraded
    learner._end()


def folders(cluster: Any) -> list[Path]:
    from echo_ray.shard import folder_of

    return [folder_of("echo", cluster._placement._mark)] * 2


def test_a_worker_that_is_killed_comes_back(cluster: Any) -> None:
    before = items(cluster)
    (victim, *_) = [pid for pool in cluster._pools() for pid in pool["running"].values()]
    os.kill(victim, signal.SIGKILL)
    until(lambda: cluster.status()["workers"]["restarted"] == 1)
    until(lambda: items(cluster) == before + ITEMS)
    cluster.check()


def test_the_token_is_not_shown(cluster: Any, ray_folder: Path) -> None:
    import ray
    from ray.exceptions import RayError

    secret = bytes(cluster.token).decode()
    shown = repr(cluster) + repr(cluster.plan) + repr(cluster.status()) + f"{cluster.token}" + repr(cluster._placement.shards)
    with pytest.raises((RayError, TypeError)) as caught:
        ray.get(cluster._placement.shards[0].ask.remote({}, "one argument too many"))
    shown += str(caught.value)
    assert secret not in shown
    pids = [row["pid"] for row in cluster.status()["shards"]] + [pid for pool in cluster._pools() for pid in pool["running"].values()]
    for pid in pids:
        assert secret not in Path(f"/proc/{pid}/cmdline").read_text()
        assert secret not in Path(f"/proc/{pid}/environ").read_text()
    logs = [path for path in (ray_folder / "ray").rglob("*") if path.is_file() and path.suffix in (".log", ".out", ".err")]
    assert logs and not [path for path in logs if secret.encode() in path.read_bytes()]


def test_another_process_sees_scales_and_drains_it(cluster: Any) -> None:
    from echo_ray.commands import command

    with echo_ray.connect() as view:
        assert view.token == cluster.token and len(view.members()) == 2
        before = items(cluster)
        view.scale(3)
        until(lambda: items(cluster) == before + ITEMS)
        view.scale(1)
        until(lambda: items(cluster) == before + ITEMS + 2)  # each sends one more when it is told to leave
        until(lambda: view.status()["workers"]["running"] == 1)
        with pytest.raises(ConfigError, match="from 0 to 4"):
            view.scale(5)
        done = CliRunner().invoke(command, ["status", "--json"], standalone_mode=False)
        assert done.return_value == 0 and [row["state"] for row in json.loads(done.output)["shards"]] == ["up", "up"]
        view.drain(1)
    assert [row["state"] for row in cluster.status()["shards"]] == ["up", "drained"]
    text = CliRunner().invoke(command, ["status"], standalone_mode=False)
    assert "1 of 2 shards up" in text.output and "1 of 1 workers run" in text.output


def test_it_ends_when_another_process_asks(cluster: Any) -> None:
    from echo_ray.commands import command

    places = set(folders(cluster))
    done = CliRunner().invoke(command, ["down"], standalone_mode=False)
    assert done.return_value == 0, done
    until(lambda: cluster.closed)
    assert not any(place.exists() for place in places)
    with pytest.raises(ConfigError, match="no cluster named 'echo'"):
        echo_ray.connect()


def test_a_search_runs_on_it(ray_nodes: Any) -> None:
    """The workers of echo-es run where [cluster] says, and echo-es knows nothing of Ray."""
    from echo_es import PGPE, ESServer, start_workers

    config = {"cluster": {"via": "ray", "workers": {"min": 2, "cpus": 0.0}}}
    server = ESServer(transport="tcp://127.0.0.1:0", strategy=PGPE(3, 8, sigma=0.1), max_epochs=5)
    with server, start_workers(config, nearness, str(server.address)) as workers:
        assert server.wait(120)
        assert workers.wait(60), "the search is over, so its workers end by themselves"
    assert server.best is not None and server.best.epoch <= 5


def test_the_readme_runs(ray_nodes: Any, tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text()
    (program,) = re.findall(r"^```python needs=ray\n(.*?)^```$", page, re.M | re.S)
    (tmp_path / "program.py").write_text(program)
    lines = ["[cluster]", "workers = { min = 1, cpus = 0.0 }", "[example]", 'obs = { dtype = "float32", shape = [4] }']
    (tmp_path / "echo.toml").write_text("\n".join([*lines, "[[server.tables]]", 'name = "replay"', "capacity = 1000", 'sampler = "prioritized"']))
    environment = {**os.environ, "RAY_ADDRESS": ray_nodes.address}
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=environment, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

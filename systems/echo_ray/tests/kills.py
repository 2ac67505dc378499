"""Twenty kills on two nodes of Ray, and the death of Ray's control store. It takes minutes: `./dev ray_kills` runs it."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import echo_ray
from echo_core import Client, EchoError

sys.path.insert(0, os.path.dirname(__file__))
from work import CONFIG, EXAMPLE, items, send_always, until

WORKER_KILLS = SHARD_KILLS = 10
PATIENCE = 1.0
TABLES = [{"name": "replay", "capacity": 1_000_000, "sampler": {"type": "prioritized", "alpha": 1.0}}]
DRIVER = """
import time
import ray, echo_ray
import work
ray.init(address={address!r}, log_to_driver=False)
cluster = echo_ray.up(work.CONFIG, work.send_some)
learner = cluster.learner(work.EXAMPLE)
work.until(lambda: learner.stats()["items"] == 2 * work.ITEMS)
print("pids", *(row["pid"] for row in cluster.status()["shards"]), *(p for pool in cluster._pools() for p in pool["running"].values()), flush=True)
draws = failed = 0
while True:
    ends = time.monotonic() + 1.0
    while time.monotonic() < ends:
        try:
            learner.sample(32)
            draws += 1
        except Exception as error:
            print("failed", repr(error), flush=True)
            failed += 1
    print("draws", draws, "failed", failed, "notes", *cluster._notes(), flush=True)
"""


def marks(batch: Any) -> Any:
    """The priority of an item, which tells from which item it comes."""
    return 1.0 + batch["number"] % 5 + 10 * (batch["worker"] % 3)


def everything(cluster: Any) -> Counter[tuple[int, int]]:
    """How often each item (worker, number) lies in the shards."""
    found: Counter[tuple[int, int]] = Counter()
    for member in cluster.members():
        with Client(member.addresses[0], EXAMPLE, token=cluster.token, timeout=60) as client:
            size, keys = int(client.server_stats()["table/replay/size"]), {}
            for _ in range(500 if size else 0):
                batch, _, drawn, _, _ = client.sample(2 * size)
                keys.update(zip(drawn.tolist(), zip(batch["worker"].tolist(), batch["number"].tolist())))
                client.update_priorities(drawn, np.full(len(drawn), 1e-3))  # so that the others come
                if len(keys) == size:
                    break
            assert len(keys) == size
            found.update(keys.values())
    return found


def note(latest: Path, times: list[float]) -> None:
    """Append when the last checkpoint was completed, if it is a new one."""
    if latest.exists() and (completed := latest.stat().st_mtime) > times[-1]:
        times.append(completed)


@pytest.mark.timeout(900)
def test_twenty_kills(ray_nodes: Any, tmp_path: Path) -> None:
    config = {**CONFIG, "server": {"tables": TABLES}}
    config["cluster"] = {**CONFIG["cluster"], "workers": {"min": 2, "max": 2, "cpus": 0.5, "restarts": 100}, "checkpoint_every": 1.0}
    over = threading.Event()
    longest, draws, errors = 0.0, 0, []
    with echo_ray.up(config, functools.partial(send_always, folder=str(tmp_path))) as cluster:
        learner = cluster.learner(EXAMPLE, patience=PATIENCE, timeout=120)

        def learn() -> None:
            nonlocal longest, draws
            former: list[Any] = []
            while not over.is_set():
                began = time.monotonic()
                try:
                    sample = learner.sample(64)
                    former.append((sample.keys, marks(sample.batch)))
                    learner.update_priorities(*former[-1])
                    if len(former) > 50:
                        learner.update_priorities(*former.pop(0))  # also keys of servers that are dead
                except EchoError as error:
                    errors.append(error)
                longest, draws = max(longest, time.monotonic() - began), draws + 1

        until(lambda: learner.stats()["items"] > 0)
        learning = threading.Thread(target=learn, daemon=True)
        learning.start()
        pids: set[int] = set()
        for _ in range(WORKER_KILLS):  # phase 1: workers only, so nothing is there twice, and nothing acknowledged is lost
            until(lambda: len({pid for pool in cluster._pools() for pid in pool["running"].values()} - pids) == 2)
            until(lambda: sum(path.stat().st_size for path in tmp_path.iterdir() if path.name.isdigit()) > 0)
            victim = next(pid for pool in cluster._pools() for pid in pool["running"].values())
            pids.add(victim)
            os.kill(victim, signal.SIGKILL)
            time.sleep(0.5)
        (tmp_path / "pause").touch()
        time.sleep(2.0)
        over.set()
        learning.join()
        print(f"workers killed: longest gap of the learner {longest:.2f} s over {draws} batches")
        wrong = 0
        for _ in range(20):
            sample = learner.sample(512)
            told = sample.probabilities * sum(shard.mass for shard in learner.shards)
            wrong += int((~(np.isclose(told, 1.0, rtol=1e-2) | np.isclose(told, marks(sample.batch), rtol=1e-2))).sum())
        assert not wrong and not errors
        found = everything(cluster)
        assert set(found.values()) == {1}, "nothing is there twice"
        acknowledged = {(int(path.name), n) for path in tmp_path.iterdir() if path.name.isdigit() for n in range(int(path.read_text() or 0))}
        assert len(acknowledged) > 100 and acknowledged <= set(found), "nothing acknowledged is lost"

        over.clear()
        longest, draws = 0.0, 0
        (tmp_path / "pause").unlink()
        learning = threading.Thread(target=learn, daemon=True)
        learning.start()
        lost, back, bounds = [], [], []
        for kill in range(SHARD_KILLS):  # phase 2: each shard is killed when the last one serves again
            until(lambda: all(row["state"] == "up" for row in cluster.status()["shards"]))
            latest = next(Path(os.environ["TMPDIR"]).glob("echo-ray-echo-*")) / f"checkpoint-{kill % 2}" / "LATEST"
            history, written = [], [0.0, 0.0]  # the shard as it was, and when its checkpoints were completed
            for _ in range(15):
                history.append((time.time(), cluster.status()["shards"][kill % 2]))
                time.sleep(0.2)
                note(latest, written)
            row = history[-1][1]
            os.kill(row["pid"], signal.SIGKILL)
            began = time.monotonic()
            note(latest, written)
            until(lambda: (now := cluster.status()["shards"][kill % 2])["life"] != row["life"] and now["state"] == "up")  # noqa: B023
            back.append(time.monotonic() - began)
            after = cluster.status()["shards"][kill % 2]["tables"]["replay"]["size"]
            # The last checkpoint was begun after the one before it was completed.
            bounds.append(max((one["tables"]["replay"]["size"] for at, one in history if at < written[-2] and one["tables"]), default=0))
            assert after >= bounds[-1], "what a checkpoint had is not lost"
            lost.append(max(0, row["tables"]["replay"]["size"] - after))
        over.set()
        learning.join()
        print(
            f"shards killed: longest gap of the learner {longest:.2f} s over {draws} batches; "
            f"a shard is back after {np.median(back):.1f} s (median), {max(back):.1f} s at most"
        )
        print(f"items that a killed shard had acknowledged since its checkpoint: {lost}")
        assert any(bounds), "no checkpoint but the first was seen before a kill"
        assert not errors, "no draw has failed"
        assert items(cluster) > 0
        learner._end()


@pytest.mark.timeout(400)
def test_the_control_store_is_killed(ray_nodes: Any, tmp_path: Path) -> None:
    """It comes last, because it ends Ray. No draw fails until Ray ends the process, and the view says what is wrong."""
    text = DRIVER.format(address=ray_nodes.address)
    environment = {**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "20"}
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in next(line for line in driver.stdout if line.startswith("pids")).split()[1:]]
        next(line for line in driver.stdout if line.startswith("draws"))
        store = next(process for process in psutil.Process().children(recursive=True) if process.name() == "gcs_server")
        import ray

        ray.shutdown()  # this process would be ended, too
        began = time.monotonic()
        store.kill()
        said = []
        for line in driver.stdout:
            said.append(line.strip())
        print(f"the process of the learner has ended {time.monotonic() - began:.0f} s after the control store; its last words: {said[-2:]}")
    assert len(said) > 5 and not any(line.startswith("failed") for line in said) and " failed 0 " in said[-1]
    assert "Ray's control store (gcs_server) has not answered" in said[-1]
    until(lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids), 180)
    (left,) = Path(os.environ["TMPDIR"]).glob("echo-ray-echo-*")
    assert list(left.glob("checkpoint-*")), "nobody was there to remove the checkpoints, from which another cluster can go on"
    shutil.rmtree(left)

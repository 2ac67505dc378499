"""`[cluster] via = "local"`: shards and workers are started, restarted, scaled, drained and ended, and the token is not shown."""

from __future__ import annotations

import errno
import functools
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_cluster import ClusterClient, LocalCluster, testing
from echo_cluster.launching.child import packed
from echo_cluster.launching.context import WorkerContext
from echo_cluster.launching.local import LocalLaunched
from echo_cluster.launching.plan import plan_of
from echo_cluster.launching.pool import WorkerPool
from echo_cluster.launching.scaling import Scaling, waits
from echo_core import ConfigError, EchoError, Table
from echo_core.config.config import load
from echo_core.config.launching import launch

EXAMPLE = {"worker": np.zeros((), np.int64), "number": np.zeros((), np.int64)}
CONFIG: dict[str, Any] = {
    "cluster": {"shards": 2, "workers": {"min": 2, "max": 4, "restarts": 2}, "checkpoint_every": 0.2},
    "example": {"worker": {"dtype": "int64", "shape": []}, "number": {"dtype": "int64", "shape": []}},
    "server": {"tables": [{"name": "replay", "capacity": 100_000, "sampler": "uniform"}]},
}
ITEMS = 50


def send_some(context: WorkerContext) -> None:
    """Send 50 items, and stay until told to leave; then send one more."""
    with context.client(EXAMPLE) as client:
        for number in range(ITEMS):
            client.send({"worker": np.array(context.index), "number": np.array(number)})
        client.wait()
        while not context.wait(60):
            pass
        client.send({"worker": np.array(context.index), "number": np.array(ITEMS)})


def fail(context: WorkerContext) -> None:
    raise SystemExit(3)


def finish(context: WorkerContext, folder: str) -> None:
    Path(folder, context.name).write_text(os.environ["ECHO_TOKEN"])


def never_leave(context: WorkerContext) -> None:
    try:
        Path(os.environ["LEFT_HERE"] + ".begun").touch()
        while True:
            time.sleep(0.05)
    finally:
        Path(os.environ["LEFT_HERE"]).touch()


def until(true: Callable[[], Any], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it does not happen"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """One cluster lives through all tests, and `cluster` looks at what it leaves behind."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalLaunched]:
    threads = set(threading.enumerate())
    with launch(CONFIG, send_some) as launched:
        assert isinstance(launched, LocalLaunched)
        yield launched
        assert launched._cluster is not None
        folder = launched._cluster.folder
    until(lambda: set(threading.enumerate()) <= threads and not multiprocessing.active_children())
    assert not folder.exists()


def items(cluster: LocalLaunched) -> int:
    return sum(row["tables"]["replay"]["size"] for row in cluster.status()["shards"] if row["tables"])


def test_all_begins_and_every_item_is_drawn(cluster: LocalLaunched) -> None:
    until(lambda: items(cluster) == 2 * ITEMS)
    learner = cluster.learner(EXAMPLE)
    until(lambda: learner.stats()["items"] == 2 * ITEMS)
    found: set[tuple[int, int]] = set()
    for _ in range(100):
        batch = learner.sample(200).batch
        found |= set(zip(batch["worker"].tolist(), batch["number"].tolist()))
        if len(found) == 2 * ITEMS:
            break
    assert found == {(worker, number) for worker in range(2) for number in range(ITEMS)}
    learner._end()


def test_a_worker_leaves_by_itself(cluster: LocalLaunched) -> None:
    cluster.scale(3)
    until(lambda: items(cluster) == 3 * ITEMS)
    cluster.scale(2)
    until(lambda: items(cluster) == 3 * ITEMS + 1)  # its last item, when it was told to leave
    until(lambda: cluster.status()["workers"]["running"] == 2)
    with pytest.raises(ConfigError, match="from 0 to 4"):
        cluster.scale(5)


def wait_for_checkpoint(folder: Path) -> None:
    """Until each shard has written one that was begun after this call: the second from now, because the next may be under way."""

    def newest() -> dict[Path, str]:
        return {latest: latest.read_text() for latest in folder.glob("checkpoint-*/LATEST")}

    def all_are_newer(before: dict[Path, str]) -> bool:
        now = newest()
        return all(now[latest] != name for latest, name in before.items())

    for _ in range(2):
        until(functools.partial(all_are_newer, newest()))


def test_a_killed_worker_and_a_killed_shard_come_back(cluster: LocalLaunched) -> None:
    assert cluster._cluster is not None
    wait_for_checkpoint(cluster._cluster.folder)
    before = items(cluster)
    assert cluster._cluster is not None and cluster._pool is not None
    shard = cluster._cluster.processes[0]
    os.kill(shard.pid or 0, signal.SIGKILL)
    until(lambda: cluster._cluster is not None and cluster._cluster.processes[0] is not shard)
    until(lambda: all(row["state"] == "up" for row in cluster.status()["shards"]))
    assert items(cluster) == before, "they were in the checkpoint"
    os.kill(cluster._pool.figures()["running"][0], signal.SIGKILL)
    until(lambda: cluster.status()["workers"]["restarted"] == 1)
    until(lambda: items(cluster) == before + ITEMS)
    cluster.check()


def test_a_drained_shard_stays_down(cluster: LocalLaunched) -> None:
    cluster.drain(1)
    rows = cluster.status()["shards"]
    assert [row["state"] for row in rows] == ["up", "drained"]
    cluster.drain(1)  # it is already
    with pytest.raises(ConfigError, match="from 0 to 1"):
        cluster.drain(2)


def test_the_token_is_not_shown(cluster: LocalLaunched) -> None:
    secret = bytes(cluster.token).decode()
    shown = repr(cluster) + repr(cluster.plan) + str(cluster.plan) + repr(cluster.status()) + f"{cluster.token}"
    assert secret not in shown
    assert cluster._cluster is not None and cluster._pool is not None
    for pid in [*cluster._pool.figures()["running"].values(), cluster._cluster.processes[0].pid]:
        assert secret not in Path(f"/proc/{pid}/cmdline").read_text()
        assert secret not in Path(f"/proc/{pid}/environ").read_text()


def test_workers_that_die_have_a_budget(caplog: pytest.LogCaptureFixture) -> None:
    with launch(CONFIG, fail, shards=0, workers=1) as cluster:
        with pytest.raises(EchoError, match=r"3 workers have died within 10 minutes, the last one with exit code 3"):
            cluster.wait(60)
        assert cluster.status()["workers"]["running"] == 0
    assert bytes(cluster.token).decode() not in caplog.text


def test_workers_that_end_are_done_and_have_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_TOKEN", "0123456789abcdef0123")
    with launch(CONFIG, functools.partial(finish, folder=str(tmp_path)), shards=0, workers=2) as cluster:
        assert cluster.wait(60)
    assert {file.name: file.read_text() for file in tmp_path.iterdir() if file.is_file()} == {f"echo-{n}": "0123456789abcdef0123" for n in range(2)}


def test_a_command_is_a_worker(tmp_path: Path) -> None:
    program = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(os.environ['ECHO_TOKEN'])"
    with launch(CONFIG, ["{python}", "-c", program, str(tmp_path / "{index}")], shards=0, workers=2, token="t" * 20) as cluster:
        assert cluster.wait(60)
    assert [(tmp_path / str(index)).read_text() for index in range(2)] == ["t" * 20] * 2


def test_a_command_that_cannot_be_run_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with launch(CONFIG, ["/nowhere/worker", "{index}"], shards=0, workers=1) as cluster, pytest.raises(EchoError, match="with exit code 1; no more are"):
        cluster.wait(120)
    said = capfd.readouterr().err
    assert "the worker's command '/nowhere/worker' cannot be run: No such file or directory" in said and "Traceback" not in said


def test_status_says_what_has_become_of_a_shard() -> None:
    with launch(CONFIG, None, shards=1) as cluster:
        assert isinstance(cluster, LocalLaunched) and cluster._cluster is not None
        cluster.learner(EXAMPLE).close()
        cluster._cluster.processes[0].join(60)
        (row,) = cluster.status()["shards"]
        assert (row["state"], row["error"]) == ("down", "it has ended with the job")
    (row,) = cluster.status()["shards"]
    assert (row["state"], row["error"]) == ("down", "down() has ended it")


def test_a_shard_that_runs_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "ENDING_SECONDS", 0.1)
    with LocalCluster(1, tables_of(CONFIG)) as local:
        process = local.processes[0]
        with pytest.raises(EchoError, match=r"shard 0 runs; end it by drain\(0\) or kill\(0\)"):
            local.restart(0)
        assert local.processes == [process] and process.is_alive() and local.wait(0).name == "shard-0"


def test_what_does_not_leave_is_interrupted_and_then_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("LEFT_HERE", str(tmp_path / "left"))
    with launch(CONFIG, never_leave, shards=0, workers=1):
        until((tmp_path / "left.begun").exists)
        program = "import pathlib, signal, sys, time; signal.signal(2, signal.SIG_IGN); pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
        stuck = launch(CONFIG, ["{python}", "-c", program, str(tmp_path / "stuck")], shards=0, workers=1)
        until((tmp_path / "stuck").exists)
        with caplog.at_level(logging.WARNING, "echo"):
            stuck.down(0.5)
        assert "did not leave within 0.5 s, and is killed" in caplog.text
    assert (tmp_path / "left").exists(), "it was interrupted, not killed"


@pytest.mark.parametrize("step", ["drain", "close"])
def test_down_is_called_again_after_ctrl_c(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    cluster = launch(CONFIG, shards=1)
    assert isinstance(cluster, LocalLaunched) and cluster._cluster is not None
    local, (shard,) = cluster._cluster, cluster._cluster.processes
    try:
        monkeypatch.setattr(local, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            cluster.down()
        monkeypatch.undo()
        assert step == "close" or not (shard.is_alive() or local.folder.exists()), "it is killed if the drain is interrupted"
        cluster.down()
        assert not shard.is_alive() and not local.folder.exists()
    finally:
        local.close()


def test_a_pool_goes_on_after_a_worker_could_not_be_started(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    full, failed = False, 0

    def start(index: int) -> None:
        nonlocal failed
        if full:
            failed += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        started(index)

    pool = WorkerPool(packed(["sleep", "600"]), name="tried", members=None, token=b"t" * 20)
    started = pool._start
    monkeypatch.setattr(pool, "_start", start)
    try:
        pool.set(1)
        until(lambda: pool.figures()["running"])
        first = pool._running[0]
        with caplog.at_level(logging.WARNING, "echo"):
            full = True
            pool.set(3)
            until(lambda: failed >= 3)
            assert list(pool.figures()["running"]) == [0] and first.poll() is None
            full = False
            until(lambda: len(pool.figures()["running"]) == 3)
        assert [record.getMessage() for record in caplog.records] == ["worker tried-1 cannot be started: [Errno 24] Too many open files; it is tried again"]
        assert pool.figures()["running"][0] == first.pid and pool.figures()["restarted"] == 0
    finally:
        pool.close()


def test_a_pool_that_closes_at_once_ends_its_workers() -> None:
    pool = WorkerPool(packed(["sleep", "600"]), name="brief", members=None, token=b"t" * 20)
    pool.set(2)
    until(lambda: len(pool.figures()["running"]) == 2)
    workers = list(pool._running.values())
    pool.close(0)
    assert None not in [worker.returncode for worker in workers]
    assert (pool.figures()["running"], pool.figures()["leaving"]) == ({}, 0)


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ({}, {"shards": 0}, "nothing to start"),
        ({}, {"worker": 3}, "worker must be a function"),
        ({}, {"worker": lambda context: None}, "write it as a function of a module"),
        ({}, {"name": "a/b"}, "no name of a cluster"),
        ({}, {"workers": -1, "worker": send_some}, "workers must be a whole number"),
        ({"server": {"tables": None}}, {}, "shards need tables"),
        ({"security": {"auth": False}}, {}, "need a token"),
    ],
)
def test_mistakes_are_said(config: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    whole = {**CONFIG, **config}
    if whole["server"] == {"tables": None}:
        del whole["server"]
    given = {"worker": None, "shards": None, "workers": None, "tables": None, "token": None, "name": "echo", **arguments}
    with pytest.raises(ConfigError, match=message):
        plan_of(load(whole, env={}), given.pop("worker"), **given)


def test_a_plan_can_be_sent() -> None:
    plan = plan_of(load(CONFIG, env={}), send_some, shards=None, workers=None, tables=None, token=None, name="echo")
    again = pickle.loads(pickle.dumps(plan))
    assert again.token == plan.token and again.scales and again.tables[0].name == "replay"


def test_the_number_of_workers_follows_who_waits() -> None:
    scaling = Scaling(4, 64, 30.0)
    workers = [8]

    def minute(first: int, learner: Callable[[int], bool], blocked: float) -> None:
        for second in range(first, first + 31):
            workers.append(scaling.look(float(second), learner(second), blocked, workers[-1]))

    minute(0, lambda second: second % 5 == 0, 0.0)
    assert workers[-1] == 10, "a quarter more"
    minute(100, lambda second: second % 5 == 0, 0.01)
    assert workers[-1] == 10, "a worker is blocked, so more would not help"
    scaling = Scaling(4, 64, 30.0)
    minute(200, lambda second: False, 0.6)
    assert workers[-1] == 9, "a tenth fewer"
    scaling = Scaling(4, 9, 30.0)
    minute(300, lambda second: True, 0.0)
    assert workers[-1] == 9, "not above the largest number"


def test_who_waits_is_read_from_the_shards() -> None:
    def shard(workers: int, blocked: str, draws: int) -> dict[str, Any]:
        return {"workers": workers, "tables": {"a": {"blocked": blocked, "draws_waiting": draws, "inserts_waiting": 0}}}

    assert waits([]) == (False, 0.0)
    assert waits([shard(3, "", 1), shard(1, "inserts", 0)]) == (True, 0.25)
    assert waits([shard(2, "samples", 0)]) == (False, 0.0), "an empty table at which nobody draws"


def test_workers_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    program = (
        "import time\nfrom test_launching import *\n"
        "def main():\n    cluster = launch(CONFIG, send_some)\n    until(lambda: items(cluster) == 2 * ITEMS)\n"
        "    print(*cluster._pool.figures()['running'].values(), *(one.pid for one in cluster._cluster.processes), cluster._cluster.folder, flush=True)\n"
        "    time.sleep(600)\nif __name__ == '__main__':\n    main()\n"
    )
    (tmp_path / "program.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    with subprocess.Popen([sys.executable, str(tmp_path / "program.py")], stdout=subprocess.PIPE, text=True, env=env) as running:
        assert running.stdout is not None
        *pids, folder = running.stdout.readline().split()
        running.kill()
    until(lambda: not any(_runs(int(pid)) for pid in pids))
    shutil.rmtree(folder)


ENDS = {
    "cluster": "cluster = LocalCluster(2, tables_of(CONFIG))",
    "launched": "launched = launch(CONFIG, send_some); cluster = launched._cluster; until(lambda: items(launched) == 2 * ITEMS)",
}


@pytest.mark.parametrize("kind", ENDS)
def test_a_program_that_fails_ends_and_its_cluster_with_it(tmp_path: Path, kind: str) -> None:
    """Neither the cluster nor a client or a learner of it is closed."""
    program = (
        "from echo_cluster import ClusterLearner, LocalCluster\nfrom test_launching import *\n"
        f"def main():\n    {ENDS[kind]}\n"
        "    client = ClusterClient(cluster.members, EXAMPLE, token=cluster.token); learner = ClusterLearner(cluster.members, EXAMPLE, token=cluster.token)\n"
        f"    workers = launched._pool.figures()['running'].values() if {kind == 'launched'} else ()\n"
        "    print(*workers, *(one.pid for one in cluster.processes), cluster.folder, flush=True)\n"
        "    raise RuntimeError('a fault of the program')\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    (tmp_path / "program.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, env=env, timeout=240, check=False)
    *pids, folder = done.stdout.split()
    assert done.returncode == 1 and "a fault of the program" in done.stderr
    assert "interpreter shutdown" not in done.stderr
    assert len(pids) == (4 if kind == "launched" else 2) and not any(_runs(int(pid)) for pid in pids)
    assert not Path(folder).exists()


def tables_of(config: dict[str, Any]) -> list[Table]:
    return list(plan_of(load(config, env={}), None, shards=None, workers=None, tables=None, token=None, name="echo").tables)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_clients_of_the_launcher(cluster: LocalLaunched) -> None:
    with cluster.client(EXAMPLE, name="mine") as client:
        assert isinstance(client, ClusterClient)
        client.send({"worker": np.array(9), "number": np.array(9)})
        client.wait()

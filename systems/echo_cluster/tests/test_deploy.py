"""The files of systems/echo_cluster/deploy: the commands that they run, with other folders and ports."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

from echo_cluster import ClusterClient, ClusterLearner
from echo_testing.ports import free_port
from echo_testing.processes import until

pytest.importorskip("echoctl")
pytestmark = [pytest.mark.needs("echo-cluster", "echo-tcp"), pytest.mark.timeout(120)]

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
EXAMPLE = {"obs": np.zeros((84, 84, 4), np.uint8), "action": np.int64(0), "reward": np.float32(0)}
SMALL = """
[server]
batch_size = 64
[[server.tables]]
name = "replay"
capacity = 10_000
sampler = { type = "uniform" }
[example]
number = { dtype = "int64" }
"""
WORKER = """
import os
import numpy as np
from echo_cluster import ClusterClient
from echo_core import JobEnded
try:
    with ClusterClient("slurm://", {"number": np.int64(0)}, table="replay") as worker:
        while True:
            worker.send({"number": int(os.environ["SLURM_PROCID"])})
except JobEnded:
    print("a worker has ended", flush=True)
"""
LEARNER = """
import numpy as np
from echo_cluster import ClusterLearner
with ClusterLearner("slurm://", {"number": np.int64(0)}, table="replay") as learner:
    workers = set()
    while len(workers) < 3:
        workers.update(learner.sample(64, timeout=60).batch["number"].tolist())
    print("drawn from workers", *sorted(workers), flush=True)
"""


@contextmanager
def running(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-m", "echoctl", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ends_well(process: subprocess.Popen[str]) -> None:
    """SIGTERM, as `kubectl delete pod` and `systemctl stop` send it."""
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def test_the_shard_of_kubernetes(tmp_path: Path) -> None:
    """Its arguments and its configuration are those of the manifest; only folders, ports and the size of the table are others."""
    manifest = (DEPLOY / "kubernetes" / "replay.yaml").read_text()
    (indented,) = re.findall(r"  echo\.toml: \|\n((?:    .*\n|\n)+)", manifest)
    port, metrics = free_port(), free_port()
    configuration = "".join(line[4:] + "\n" for line in indented.splitlines())
    for was, now in (("0.0.0.0:5000", f"127.0.0.1:{port}"), ("1_000_000", "100")):
        assert configuration.count(was) == 1
        configuration = configuration.replace(was, now)
    (tmp_path / "echo.toml").write_text(configuration)
    (listed,) = re.findall(r"args: \[(.*)\]", manifest)
    arguments = [word.strip().strip('"') for word in listed.split(",")]
    places = {"/etc/echo/echo.toml": str(tmp_path / "echo.toml"), "/data/checkpoint": str(tmp_path / "checkpoint")}
    places |= {"0.0.0.0": "127.0.0.1", "9100": str(metrics)}
    assert places.keys() <= {*arguments}
    with running([places.get(word, word) for word in arguments]) as shard:
        until(lambda: ready(metrics), "the shard is ready")
        with ClusterClient([f"tcp://127.0.0.1:{port}"], EXAMPLE, table="replay") as worker:
            worker.send(EXAMPLE | {"action": 7})
            worker.wait()
        ends_well(shard)
    assert any((tmp_path / "checkpoint").iterdir())
    with running([places.get(word, word) for word in arguments]) as shard:  # its successor has the item
        with ClusterLearner([f"tcp://127.0.0.1:{port}"], EXAMPLE, table="replay") as learner:
            assert learner.sample(1, timeout=60).batch["action"].tolist() == [7]
        shard.communicate(timeout=60)  # the learner has ended the job
        assert shard.returncode == 0


def test_the_shard_of_systemd(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd" / "echo-shard@.service").read_text()
    (command,) = re.findall(r"^ExecStart=\S+/echoctl (.*)$", unit, re.M)
    (tmp_path / "echo.toml").write_text(SMALL)
    metrics = free_port()
    for was, now in (("910%i", str(metrics)), ("%i", "0"), ("/etc/echo", str(tmp_path)), ("/var/lib/echo", str(tmp_path))):
        assert was in command
        command = command.replace(was, now)
    arguments = shlex.split(command)
    with running([*arguments, "--transport", "tcp://127.0.0.1:0"]) as shard:
        until(lambda: ready(metrics), "the shard is ready")
        with ClusterClient(f"file://{tmp_path}/members", {"number": np.int64(0)}, table="replay") as worker:
            worker.send({"number": 3})
            worker.wait()
        ends_well(shard)
    assert not any((tmp_path / "members").glob("shard-*"))


def test_a_job_of_slurm(tmp_path: Path) -> None:
    """The batch script as it is, on the SLURM of this machine."""
    if shutil.which("sinfo") is None or subprocess.run(["sinfo"], capture_output=True, check=False, timeout=30).returncode:
        pytest.skip("no SLURM runs here")
    for name, text in (("echo.toml", SMALL), ("worker.py", WORKER), ("learner.py", LEARNER)):
        (tmp_path / name).write_text(text)
    shutil.copy(DEPLOY / "slurm" / "replay.sbatch", tmp_path)
    folder = Path(sys.executable).parent
    environment = f"ALL,PATH={folder}:/usr/local/bin:/usr/bin:/bin,ECHO_CLUSTER_DIR={tmp_path / 'clusters'}"
    command = ["sbatch", "--wait", "--time=5", f"--export={environment}", "--output=job.out", "replay.sbatch"]
    done = subprocess.run(command, cwd=tmp_path, check=False, timeout=110)
    output = (tmp_path / "job.out").read_text()
    assert done.returncode == 0, output
    assert "drawn from workers 0 1 2" in output and output.count("a worker has ended") == 3
    assert not any((tmp_path / "clusters").iterdir())

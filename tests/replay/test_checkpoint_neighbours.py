"""Several processes at one folder of checkpoints, and disks that are full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from echo_core import Server
from echo_replay.checkpoint.files import locked

pytestmark = [pytest.mark.needs("echo-samplers")]

LEARNER = """
import logging, sys
import numpy as np
from echo_core import Server

logging.basicConfig(stream=sys.stdout, format="%(message)s")
server = Server({"x": np.zeros(64, np.float32)}, 4, sampler="uniform", capacity=500)
server.submit_batch({"x": np.full((500, 64), float(sys.argv[2]), np.float32)})
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[3])):
    server.checkpoint(sys.argv[1])
print("done", flush=True)
"""


def learner(folder: Path, value: float, count: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", LEARNER, str(folder), str(value), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def values(folder: Path) -> list[float]:
    """The different values in the newest checkpoint."""
    server = Server({"x": np.zeros(64, np.float32)}, 4, sampler="uniform", capacity=500).restore(folder)
    batch, here = server.table().peek(server.table().keys())
    assert here.all() and len(here) == 500
    return np.unique(batch["x"]).tolist()


def test_restores_beside_a_learner_that_checkpoints(tmp_path: Path) -> None:
    with learner(tmp_path, 1, 1) as first:
        go(first)
    with learner(tmp_path, 1, 150) as process:
        go(process)
        while process.poll() is None:
            assert values(tmp_path) == [1.0]
    assert process.returncode == 0 and values(tmp_path) == [1.0]


def test_a_checkpoint_that_is_read_stays_until_the_next_one(tmp_path: Path) -> None:
    server = Server({"x": np.zeros(64, np.float32)}, 4, sampler="uniform", capacity=500)
    server.submit_batch({"x": np.ones((500, 64), np.float32)})
    old = Path(server.checkpoint(tmp_path))
    with locked(old, exclusive=False):
        server.checkpoint(tmp_path)
        assert (old / "manifest.json").exists()
    server.checkpoint(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000003", "LATEST"]


def test_two_learners_in_one_folder_do_no_harm_and_are_named(tmp_path: Path) -> None:
    with learner(tmp_path, 1, 40) as one, learner(tmp_path, 2, 40) as two:
        go(one)
        go(two)
        said = one.communicate()[0] + two.communicate()[0]
    assert one.returncode == two.returncode == 0
    assert said.count("done") == 2
    assert f"somebody else checkpoints into {tmp_path} too" in said
    assert values(tmp_path) in ([1.0], [2.0])
    assert len(list(tmp_path.iterdir())) == 2


def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    program = """
import resource, signal, sys
import numpy as np
from echo_core import Server

server = Server({"x": np.zeros(1 << 16)}, 4, sampler="uniform", capacity=8)
server.submit_batch({"x": np.zeros((8, 1 << 16))})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    server.checkpoint(sys.argv[1])
except OSError as error:
    print(error.filename)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True)
    path = Path(done.stdout.strip())
    assert path.name == "0.leaf.0" and path.is_relative_to(tmp_path)
    assert list(tmp_path.iterdir()) == []

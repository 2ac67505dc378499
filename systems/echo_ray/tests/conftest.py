"""Two nodes of Ray on this machine, with a folder, a token and a shared memory of their own, of which nothing is left at the end."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from echo_testing.fixtures import config_home, no_settings_of_the_user  # noqa: F401

TRIES = 3  # a raylet gives its agent 15 s to start, which a machine under load may not keep
ENDING_SECONDS = 30.0


@pytest.fixture(scope="session")
def ray_folder() -> Iterator[Path]:
    """The folder of everything that Ray and these tests write. Ray reads the variables when it is imported, so no test imports it before."""
    folder = Path(tempfile.mkdtemp(prefix="er-", dir="/tmp"))  # paths of Unix sockets are short
    (folder / "ray").mkdir()
    settings = {
        "RAY_TMPDIR": str(folder),
        "TMPDIR": str(folder),
        "PYTHONPATH": str(Path(__file__).parent),  # so that worker processes find work.py; a function by value would bring Ray into each
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "60",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    tempfile.tempdir = None
    yield folder
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value
    tempfile.tempdir = None
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def ray_nodes(ray_folder: Path) -> Iterator[Any]:
    """This process, connected to Ray on two virtual nodes with 3 CPUs each."""
    nodes = _start()
    import ray

    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()
    ends = time.monotonic() + ENDING_SECONDS
    while left := [*(process.name() for process in psutil.Process().children(recursive=True)), *_shared()]:
        assert time.monotonic() < ends, f"left behind: {left}"
        time.sleep(0.1)
    others = sorted(path.name for path in ray_folder.glob("echo*"))
    assert not others, f"left behind: {others}"


def _shared() -> list[str]:
    """What lies in shared memory of Ray and of these tests; other programs of the machine have their own there."""
    return [name for name in os.listdir("/dev/shm") if name.startswith(("plasma", "ray")) or "echo-ray" in name]


def _start() -> Any:
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 3, "include_dashboard": False, "object_store_memory": 80 << 20}
    for left in reversed(range(TRIES)):
        try:
            nodes = Cluster(initialize_head=True, head_node_args=options)
            nodes.add_node(**options)
            return nodes
        except Exception:
            for process in psutil.Process().children(recursive=True):
                process.kill()
            if not left:
                raise
    raise AssertionError

"""docs/plugins/transport.md: its package is put together as written, installed, and used by a learner and a worker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins" / "transport.md"
FILE = re.compile(r"^```(?:python|toml) title=(\S+)\n(.*?)^```$", re.M | re.S)

pytestmark = pytest.mark.needs("echo-core", "echo-samplers")

LEARNER = """
import subprocess, sys
import numpy as np
from echo_core import Server

with Server({"x": np.zeros(3, np.float32)}, batch_size=4, transport=sys.argv[1]) as server:
    server.publish({"w": np.arange(3.0)})
    worker = subprocess.Popen([sys.executable, "worker.py", str(server.address)])
    seen = [int(x) for _ in range(25) for x in server.sample(timeout=30).batch["x"][:, 0]]
    assert worker.wait(timeout=30) == 0
    assert seen == list(range(100)), seen
    print("learned from", len(seen))
"""

WORKER = """
import sys
import numpy as np
from echo_core import Client, SpecError

with Client(sys.argv[1], {"x": np.zeros(3, np.float32)}) as client:
    assert client.weights(timeout=30).params["w"].tolist() == [0.0, 1.0, 2.0]
    for i in range(50):
        client.send({"x": np.full(3, i, np.float32)})
    client.send_batch({"x": np.repeat(np.arange(50, 100, dtype=np.float32), 3).reshape(50, 3)})
try:
    Client(sys.argv[1], {"x": np.zeros(3, np.float64)})
except SpecError as error:
    assert "float64" in str(error) and "float32" in str(error), error
else:
    raise AssertionError("another spec was let in")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The files of the page, as pip would install them."""
    files = dict(FILE.findall(PAGE.read_text()))
    assert {"pyproject.toml", "echo_uds/__init__.py", "echo_uds/transport.py"} < set(files)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    info = tmp_path / "echo_uds-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    (tmp_path / "learner.py").write_text(LEARNER)
    (tmp_path / "worker.py").write_text(WORKER)
    return tmp_path


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=package,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_it_is_as_short_as_it_says() -> None:
    code = [text for name, text in FILE.findall(PAGE.read_text()) if name.startswith("echo_uds/")]
    lines = [line for text in code for line in text.splitlines() if line.strip()]
    assert len(lines) < 100


def test_a_learner_and_a_worker_find_each_other(package: Path) -> None:
    done = run(package, "learner.py", f"uds://{package}/s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "learned from 100\n"
    assert not (package / "s").exists()


def test_the_socket_of_a_killed_learner_is_taken_over_and_that_of_a_living_one_is_not(package: Path) -> None:
    program = """
import os, stat
from echo_uds.transport import UdsAcceptor
first = UdsAcceptor("s")
assert stat.S_IMODE(os.stat("s").st_mode) == 0o600
try:
    UdsAcceptor("s")
except OSError as error:
    print(error)
first._sock.close()  # as if it had been killed
second = UdsAcceptor("s")
second.shutdown()
second.close()
"""
    done = run(package, "-c", program)
    assert done.returncode == 0, done.stderr
    assert "cannot listen at uds://s: Address already in use" in done.stdout


def test_a_misspelt_option_is_named(package: Path) -> None:
    program = """
import numpy as np
from echo_core import Server
Server(np.zeros(1), 2, "uds:///x?max_conections=3")
"""
    done = run(package, "-c", program)
    assert "uds.max_conections: unknown key; did you mean 'max_connections'?" in done.stderr


def test_it_passes_the_contract(package: Path) -> None:
    """A few clauses of it, by its own test module; the whole of it takes a minute."""
    clauses = "several_workers_share or a_cut_link_loses or a_wrong_token"
    done = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", clauses, "tests/test_contract.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout

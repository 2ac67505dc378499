"""Programs patched by gevent or eventlet: refused by name instead of a hang, and served if threads and sockets are left out."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

LEFT_OUT = {"gevent": "thread=False, socket=False, select=False, ssl=False", "eventlet": "thread=False, socket=False, select=False"}
PATCHES = {"gevent": "import gevent.monkey; gevent.monkey.patch_all", "eventlet": "import eventlet; eventlet.monkey_patch"}
USE = """
import numpy as np
from echo_core import Client, EchoError, Server
from echo_core.client.observer import Observer

example = {"x": np.zeros(4, np.float32)}
for use in (
    lambda: Client("tcp://127.0.0.1:1", example, timeout=1),
    lambda: Observer("tcp://127.0.0.1:1", timeout=1),
    lambda: Server(example, batch_size=2),
):
    try:
        use()
    except EchoError as error:
        print(type(error).__name__, error)
"""
SERVE = """
import os
os.environ["XDG_CONFIG_HOME"] = os.getcwd()
import numpy as np
from echo_core import Client, Server

example = {"x": np.zeros(4, np.float32)}
for scheme in ("tcp", "tcps"):
    with Server(example, batch_size=1, transport=f"{scheme}://127.0.0.1:0").start() as server, Client(server.address, example, timeout=20) as client:
        client.send({"x": np.ones(4, np.float32)})
        client.wait(20)
        print(server.sample(timeout=20).batch["x"].tolist())
"""


@pytest.fixture(params=PATCHES)
def green(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:  # importing it here would start it in this process
        pytest.skip(f"{request.param} is not installed")
    return request.param


def run(program: str, folder: Path | None = None) -> str:
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_patched_process_is_refused(green: str) -> None:
    lines = run(f"{PATCHES[green]}()\n{USE}").splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(f"EchoError {green} has replaced thread and socket and select")
        assert f"({LEFT_OUT[green]})" in line


def test_sockets_alone_are_refused(green: str) -> None:
    lines = run(f"{PATCHES[green]}(thread=False, select=False)\n{USE}").splitlines()
    assert [line.startswith(f"EchoError {green} has replaced socket") for line in lines] == [True] * 3


@pytest.mark.needs("echo-tcp")
def test_the_remedy_works(green: str, tmp_path: Path) -> None:
    assert run(f"{PATCHES[green]}({LEFT_OUT[green]})\n{SERVE}", tmp_path) == 2 * "[[1.0, 1.0, 1.0, 1.0]]\n"


@pytest.mark.needs("echo-tcp")
def test_an_installed_package_that_patches_nothing_is_no_reason(green: str, tmp_path: Path) -> None:
    assert run(f"import {green}\n{SERVE}", tmp_path) == 2 * "[[1.0, 1.0, 1.0, 1.0]]\n"

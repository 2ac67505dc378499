"""A program that ends without closing anything ends, and quietly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from echo_core.plugins import discovery

PROGRAM = """
import sys
import numpy as np
from echo_core import Client, Server

example = {"x": np.zeros(4, np.float32)}
server = Server(example, 2, sys.argv[1]).start()
client = Client(server.address, example)
client.send(example)
client.wait()
if sys.argv[2] == "modules":  # outlives the program's own names
    sys.kept = server, client
print("ends", flush=True)
"""


@pytest.mark.parametrize("held", ["globals", "modules"])
@pytest.mark.parametrize("scheme", ["tcp", "tcps", "grpc", "grpcs"])
def test_a_server_that_nobody_closes_ends_with_its_program(scheme: str, held: str, tmp_path: Path) -> None:
    if scheme not in [record.name for record in discovery.installed(discovery.TRANSPORTS)]:
        pytest.skip(f"{scheme} is not installed")
    env = os.environ | {"XDG_CONFIG_HOME": str(tmp_path), "ECHO_TOKEN": "the-token-of-these-tests-long-enough"}
    command = [sys.executable, "-c", PROGRAM, f"{scheme}://127.0.0.1:0", held]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "ends\n"), ended.stderr
    assert "Traceback" not in ended.stderr

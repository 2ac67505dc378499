"""A program that ends gets a warning if its server was left open, and nothing if it was closed."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from echo_core import Client, JobEnded

pytestmark = pytest.mark.needs("echo-tcp", "echo-samplers")

EXAMPLE = {"x": np.zeros(1, np.float32)}
TOKEN = "a-token-of-the-tests"
PROGRAM = f"""
import sys
import time
import numpy as np
from echo_core import Server

server = Server({{"x": np.zeros(1, np.float32)}}, 1, "tcp://127.0.0.1:0", token={TOKEN!r}).start()

def close(server, peer, body, blob):
    server.close()
    print("closed", flush=True)
    time.sleep(3)  # its client still counts as connected when the program ends
    return {{}}, b""

server.serve("test/close", close)
print(server.address, flush=True)
sys.stdin.readline()
"""


def said(closed: bool) -> str:
    """What the program says on stderr at its end; its handler has closed the server before, or nobody has."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        client = Client(program.stdout.readline().strip(), EXAMPLE, token=TOKEN, timeout=30, reconnect=False)
        if closed:
            with pytest.raises(JobEnded):
                client.request("test/close")
            assert program.stdout.readline() == "closed\n"
        stderr = program.communicate("\n", timeout=60)[1]
        client.close(0)
    assert program.returncode == 0, stderr
    return stderr


def test_a_server_that_is_left_open_is_named() -> None:
    assert "was left open, so its clients try to connect again; call close()" in said(closed=False)


def test_a_server_that_its_handler_has_closed_is_not() -> None:
    assert "left open" not in said(closed=True)

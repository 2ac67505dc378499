"""`echoctl relay`: it passes weights on, ends in order, and says what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from echo_core import Client, Server
from echo_testing.processes import until

pytestmark = pytest.mark.needs("echo-tcp", "click")

EXAMPLE = {"obs": np.zeros(3, np.float32)}
TOKEN = "a-token-of-this-test-0123456789abcdef"


def start(*words: str, token: str = TOKEN) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "echoctl", "relay", *words, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "ECHO_TOKEN": token})


def test_a_relay_announces_itself_passes_on_and_ends(tmp_path: Path) -> None:
    place = tmp_path / "address"
    with Server(EXAMPLE, 4, "tcp://127.0.0.1:0", token=TOKEN) as learner:
        relay = start(str(learner.address), "tcp://127.0.0.1:0", "--address-file", str(place))
        try:
            assert relay.stdout is not None
            facts = json.loads(relay.stdout.readline())
            assert facts["source"] == str(learner.address) and facts["pid"] == relay.pid
            until(place.exists, "the address file")
            assert [place.read_text().strip()] == facts["addresses"]
            published = learner.publish({"w": np.ones(3)}, version=12)
            with Client(learner.address, EXAMPLE, token=TOKEN, weights=facts["addresses"][0]) as worker:
                weights = worker.weights()
                assert (weights.version, weights.digest) == published
            relay.send_signal(signal.SIGTERM)
            assert relay.wait(20) == 0
            assert not place.exists()
        finally:
            relay.kill()
            relay.communicate()


def test_a_relay_ends_with_the_job() -> None:
    with Server(EXAMPLE, 4, "tcp://127.0.0.1:0", token=TOKEN) as learner:
        learner.publish({"w": np.ones(3)})
        relay = start(str(learner.address), "tcp://127.0.0.1:0")
        try:
            assert relay.stdout is not None
            address = json.loads(relay.stdout.readline())["addresses"][0]
            with Client(learner.address, EXAMPLE, token=TOKEN, weights=address) as worker:
                assert worker.weights().version == 1
                learner.close()
                until(lambda: worker.ended, "the worker is told")
            assert relay.wait(20) == 0
        finally:
            relay.kill()
            relay.communicate()


def test_a_token_that_is_wrong_ends_it() -> None:
    with Server(EXAMPLE, 4, "tcp://127.0.0.1:0", token=TOKEN) as learner:
        relay = start(str(learner.address), "tcp://127.0.0.1:0", token="another-token-0123456789abcdef-0123")
        said, _ = relay.communicate(timeout=60)
        assert relay.returncode == 3
        told = json.loads(said.splitlines()[-1])
        assert told["type"] == "SecurityError" and "token" in told["error"]


def test_an_address_that_is_none_is_told() -> None:
    relay = start("nowhere", "tcp://127.0.0.1:0")
    said, _ = relay.communicate(timeout=60)
    assert relay.returncode == 2 and "server.weights_from" in json.loads(said)["error"]

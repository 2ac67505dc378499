"""A learner on an interface without a carrier says so when it starts."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from echo_rdma.carrier import interface_without_carrier

LEARNER = """
import logging, sys
import numpy as np
from echo_core import Server
logging.basicConfig(stream=sys.stdout, format="%(message)s")
with Server({"x": np.zeros(1)}, 1, "rdma://10.99.0.1:0"):
    pass
"""


def test_the_loopback_interface_has_a_carrier() -> None:
    assert interface_without_carrier("127.0.0.1") == ""
    assert interface_without_carrier("203.0.113.9") == ""  # not an address of this machine


@pytest.mark.parametrize("peer", ["up", "down"])
def test_a_learner_says_that_its_interface_has_no_carrier(peer: str) -> None:
    if shutil.which("ip") is None or subprocess.run(["unshare", "-rn", "true"], check=False).returncode:
        pytest.skip("no network namespaces here")
    setup = (
        "ip link set lo up && ip link add near type veth peer name far && ip address add 10.99.0.1/24 dev near"
        f" && ip link set near up && ip link set far {peer} && exec '{sys.executable}' -c '{LEARNER}'"
    )
    ended = subprocess.run(["unshare", "-rn", "sh", "-c", setup], capture_output=True, text=True, timeout=60, check=False)
    said = "listens on the interface near, which has no carrier" in ended.stdout
    assert said == (peer == "down"), ended

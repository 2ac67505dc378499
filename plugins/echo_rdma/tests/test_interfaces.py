"""Network interfaces that have no carrier, or that come and go."""

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

AFTER_ANOTHER = """
import subprocess
import numpy as np
from echo_core import Server
from echo_rdma import library
with Server({"x": np.zeros(1)}, 1, "rdma://10.99.0.1:0", token="the-token-of-these-tests-long-enough"):
    pass
contexts = [library.context(), library.context(loopback=True)]
subprocess.run(["ip", "link", "delete", "gone"], check=True)
for _ in range(2):
    with Server({"x": np.zeros(1)}, 1, "rdma://10.99.0.1:0", token="the-token-of-these-tests-long-enough"):
        print("listens")
assert library.context() is not contexts[0] and library.context(loopback=True) is contexts[1], "only the one that had the interface is made anew"
"""
SETUP = "mount -t sysfs none /sys && ip link set lo up"  # UCX finds interfaces there
PAIR = SETUP + " && ip link add near type veth peer name far && ip address add 10.99.0.1/24 dev near && ip link set near up"


def within_a_network(setup: str, program: str) -> subprocess.CompletedProcess[str]:
    """Run `program` in a network of its own, which the shell commands `setup` have made."""
    if shutil.which("ip") is None or subprocess.run(["unshare", "-rnm", "mount", "-t", "sysfs", "none", "/sys"], check=False).returncode:
        pytest.skip("no network namespaces here")
    command = f"{setup} && exec '{sys.executable}' -c '{program}'"
    return subprocess.run(["unshare", "-rnm", "sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)


def test_the_loopback_interface_has_a_carrier() -> None:
    assert interface_without_carrier("127.0.0.1") == ""
    assert interface_without_carrier("203.0.113.9") == ""  # not an address of this machine


@pytest.mark.parametrize("peer", ["up", "down"])
def test_a_learner_says_that_its_interface_has_no_carrier(peer: str) -> None:
    ended = within_a_network(f"{PAIR} && ip link set far {peer}", LEARNER)
    said = "listens on the interface near, which has no carrier" in ended.stdout
    assert said == (peer == "down"), ended


def test_a_learner_listens_after_an_interface_has_gone(ucx: object) -> None:
    """UCX would make no worker any more in this process."""
    other = "ip link add gone type veth peer name end && ip address add 10.98.0.1/24 dev gone && ip link set gone up && ip link set end up"
    ended = within_a_network(f"{PAIR} && ip link set far up && {other}", AFTER_ANOTHER)
    assert ended.stdout.count("listens") == 2 and ended.returncode == 0, ended

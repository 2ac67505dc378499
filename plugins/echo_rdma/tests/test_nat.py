"""A worker behind whose NAT the learner has another address: UCX cannot connect, and the worker is told why."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LEARNER = """
import numpy as np
from echo_core import Server
with Server({"x": np.zeros(1)}, 1, "rdma://10.98.2.2:5555", token="the-token-of-these-tests-long-enough") as server:
    print("listening", flush=True)
    server.sample(60)
"""
# As a forwarded port of a NAT does, it passes on what comes to its own address, and nothing else is routed.
NAT = """
import socket, threading
def pump(a, b):
    while data := a.recv(65536):
        b.sendall(data)
listener = socket.create_server(("10.98.1.1", 5555))
print("forwarding", flush=True)
while True:
    outside, inside = listener.accept()[0], socket.create_connection(("10.98.2.2", 5555))
    for ends in ((outside, inside), (inside, outside)):
        threading.Thread(target=pump, args=ends, daemon=True).start()
"""
WORKER = """
import numpy as np
from echo_core import Client, EchoTimeoutError
try:
    Client("rdma://10.98.1.1:5555", {"x": np.zeros(1)}, token="the-token-of-these-tests-long-enough", timeout=8)
except EchoTimeoutError as error:
    print(error)
"""
# The shell is in the NAT's namespace of networks; the learner and the worker have namespaces of their own. All processes end with the shell.
SHELL = """
set -e
cd "$1"
unshare -n sleep 300 & learner=$!
unshare -n sleep 300 & worker=$!
while [ "$(readlink /proc/$learner/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do :; done
while [ "$(readlink /proc/$worker/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do :; done
ip link add nl type veth peer name l0 netns $learner
ip link add nw type veth peer name w0 netns $worker
ip addr add 10.98.2.1/24 dev nl; ip link set nl up
ip addr add 10.98.1.1/24 dev nw; ip link set nw up
nsenter -t $learner -n sh -c 'ip link set lo up; ip addr add 10.98.2.2/24 dev l0; ip link set l0 up'
nsenter -t $worker -n sh -c 'ip link set lo up; ip addr add 10.98.1.2/24 dev w0; ip link set w0 up; ip route add default via 10.98.1.1'
nsenter -t $learner -n "$2" learner.py > learner.log 2>&1 &
until grep -q listening learner.log; do sleep 0.1; done
"$2" nat.py > nat.log 2>&1 &
until grep -q forwarding nat.log; do sleep 0.1; done
exec nsenter -t $worker -n "$2" worker.py
"""
ALONE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def test_a_worker_behind_a_nat_is_told_that_ucx_passes_none(tmp_path: Path) -> None:
    if shutil.which("ip") is None or shutil.which("nsenter") is None or subprocess.run([*ALONE, "true"], check=False).returncode:
        pytest.skip("no network namespaces here")
    for name, text in (("learner", LEARNER), ("nat", NAT), ("worker", WORKER)):
        (tmp_path / f"{name}.py").write_text(text)
    done = subprocess.run([*ALONE, "sh", "-c", SHELL, "sh", str(tmp_path), sys.executable], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done
    assert "something accepts connections at rdma://10.98.1.1:5555: UCX cannot reach the learner's own address" in done.stdout, done
    assert "as behind a NAT, a forwarded port or a proxy" in done.stdout and "use tcp:// or tcps:// there" in done.stdout

"""Addresses that cannot be listened on: every transport says why, and what to do."""

from __future__ import annotations

import errno
import socket
import threading

import numpy as np
import pytest

from echo_core import SecurityError, Server
from echo_testing.processes import until

EXAMPLE = {"x": np.zeros(3, np.float32)}
FOREIGN = "192.0.2.7"  # TEST-NET-1: no machine's

pytestmark = pytest.mark.needs("echo-samplers")
over = pytest.mark.parametrize("scheme", [pytest.param(name, marks=pytest.mark.needs(f"echo-{name}")) for name in ("tcp", "grpc", "rdma")])


def refusal(address: str) -> OSError:
    with pytest.raises(OSError) as caught:
        Server(EXAMPLE, 2, f"{address}?token={'0123456789abcdef' * 2}").start()
    return caught.value


@over
def test_an_address_of_another_machine(scheme: str) -> None:
    error = refusal(f"{scheme}://{FOREIGN}:0")
    assert f"cannot listen on {FOREIGN}:0: no interface of this machine has that address; give host one that it has" in str(error)
    assert error.errno == errno.EADDRNOTAVAIL


@over
def test_a_port_that_others_have(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        error = refusal(f"{scheme}://127.0.0.1:{port}")
    assert f"cannot listen on 127.0.0.1:{port}: the port is in use; choose another with port=..., or port=0" in str(error)
    assert error.errno == errno.EADDRINUSE


@over
def test_a_host_that_nobody_knows(scheme: str) -> None:
    error = refusal(f"{scheme}://no-such-host.invalid:0")
    assert "cannot listen on no-such-host.invalid:0: " in str(error) and "of this machine" in str(error)
    assert error.errno == errno.EADDRNOTAVAIL


@pytest.mark.parametrize("scheme", [pytest.param(name, marks=pytest.mark.needs(f"echo-{name.rstrip('s')}")) for name in ("tcp", "tcps", "grpc", "grpcs")])
def test_a_learner_that_cannot_start_keeps_no_port(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with pytest.raises(SecurityError, match="token"):
        Server(EXAMPLE, 2, {"type": scheme, "port": port, "token": ""}).start()

    def free() -> bool:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            return False
        return True

    until(free, "the port is free")
    until(lambda: not any(thread.name in ("echo-connection-rate", "echo-accept") for thread in threading.enumerate()), "nothing watches it")

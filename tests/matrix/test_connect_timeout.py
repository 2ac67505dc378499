"""How long connecting may take, over each transport."""

from __future__ import annotations

import numpy as np
import pytest

from echo_core import Client, ConfigError, EchoTimeoutError, Spec
from echo_core.base.address import Address
from echo_core.plugins.discovery import transport_class

EXAMPLE = {"x": np.zeros(2, np.float32)}
pytestmark = pytest.mark.needs("echo-tcp", "echo-shm", "echo-grpc")


@pytest.mark.parametrize("scheme", ["tcp", "shm", "grpc"])
def test_connecting_is_given_up_when_its_own_time_is_over(scheme: str) -> None:
    """The default of all waits is as good as endless."""
    address = Address.parse("shm://echo-nobody" if scheme == "shm" else f"{scheme}://127.0.0.1:1")
    with pytest.raises(EchoTimeoutError, match=r"0\.2 s"):
        transport_class(scheme).connect(address, Spec.from_example(EXAMPLE), timeout=1e6, connect_timeout=0.2)
    with pytest.raises(EchoTimeoutError, match=r"0\.2 s"):
        Client(address, EXAMPLE, timeout=1e6, connect_timeout=0.2)
    with pytest.raises(ConfigError, match="a client connects within its timeout"):
        Client(f"{address}?connect_timeout=3", EXAMPLE)

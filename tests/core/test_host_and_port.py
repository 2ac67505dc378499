"""`host=` and `port=`: neither a server nor a client has these arguments, and the error shows the address to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.base.errors import AddressError, ConfigError
from echo_core.plugins.discovery import PluginHost

EXAMPLE = {"x": np.zeros(2, np.float32)}
over_tcp = pytest.mark.needs("echo-samplers", "echo-tcp")

CASES: list[Any] = [
    (lambda: Server(EXAMPLE, 1, host="0.0.0.0"), 'Server takes no host, because it is a part of the address; write transport="tcp://0.0.0.0:5555"'),
    (lambda: Server(EXAMPLE, 1, port=7000), 'Server takes no port, .*; write transport="tcp://127.0.0.1:7000"'),
    (lambda: Server(EXAMPLE, 1, "way://127.0.0.1:9", host="::", port=0), r'takes no host and no port, because they are parts of the address; write transport="way://\[::\]:0"'),
    (lambda: Client(host="learner", port=5, example=EXAMPLE), 'Client takes no host and no port, .*; write address="tcp://learner:5"'),
    (lambda: Client(host="learner", example=EXAMPLE), 'write address="tcp://learner:5555"'),
    pytest.param(lambda: Server.from_config({"server": {"batch_size": 1}}, EXAMPLE, host="0.0.0.0"), 'write transport="tcp://0.0.0.0:5555"', marks=over_tcp),
    (lambda: Server.from_config({"server": {"batch_size": 1, "host": "0.0.0.0"}}, EXAMPLE), 'mapping 1: server.host: .* transport = "tcp://0.0.0.0:5555"'),
]


@pytest.mark.parametrize("make, said", CASES)
def test_the_error_shows_what_to_write(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


@over_tcp
def test_a_client_with_an_address_is_told_the_same() -> None:
    with pytest.raises(ConfigError, match='Client takes no host, .*; write address="tcp://learner:1"'):
        Client("tcp://127.0.0.1:1", EXAMPLE, host="learner")
    config = {"client": {"address": "tcp://127.0.0.1:1", "port": 2}}
    with pytest.raises(ConfigError, match='mapping 1: client.port: .* address = "tcp://learner:5555"'):
        Client.from_config(config, EXAMPLE)


def test_a_client_needs_an_address_and_an_example() -> None:
    with pytest.raises(AddressError, match="the address is empty"):
        Client(example=EXAMPLE)
    with pytest.raises(ConfigError, match=r"Client needs the example pytree, .*: Client\('tcp://learner:1', example\)"):
        Client("tcp://learner:1")


@over_tcp
def test_plugins_is_where_a_server_looks_for_plugins() -> None:
    with pytest.raises(Exception, match="'tcp' .* is disabled"):
        Server(EXAMPLE, 1, "tcp://127.0.0.1:0", plugins=PluginHost(disable=["tcp"]))
    Server(EXAMPLE, 1, "tcp://127.0.0.1:0", plugins=PluginHost()).close()

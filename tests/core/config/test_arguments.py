"""What a configuration becomes: the arguments of `Server` and `Client`, here and in another process."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from echo_core.base.address import Address
from echo_core.base.errors import ConfigError
from echo_core.config import config as configuration
from echo_core.config.config import Config, load
from echo_core.plugins.discovery import OBSERVERS

pytestmark = pytest.mark.every_python

Install = Callable[..., None]


def test_server_arguments(fakes: None, install: Install) -> None:
    observer = """
from echo_core.plugins.hookspecs import hookimpl
seen = []
@hookimpl
def echo_configure(config):
    seen.append(config.server.batch_size)
"""
    install("echo-watch", "1", OBSERVERS, {"watch": "fake_watch"}, fake_watch=observer)
    source = {
        "server": {"batch_size": 4, "transport": ["way://h:1", "path://x"]},
        "security": {"token": "correct-horse-battery", "allow_insecure": True},
    }
    arguments = configuration.server_arguments(source, {"num_buffers": 5, "extra": object})
    way, path = arguments.pop("transport")
    assert (way.options.port, way.options.allow_insecure, way.options.auth) == (1, True, True)
    assert path.options.path == "x"
    assert type(arguments.pop("sampler")).__name__ == "Draw"
    assert isinstance(arguments.pop("plugins"), configuration.PluginHost)
    assert arguments == {
        "batch_size": 4,
        "num_buffers": 5,
        "lease_timeout": 10.0,
        "pinned": False,
        "client_memory": None,
        "max_parked": 16_384,
        "max_parked_per_client": 128,
        "weights_from": None,
        "token": [b"correct-horse-battery"],
        "extra": object,
    }
    import fake_watch

    assert fake_watch.seen == [4]
    sources = [source, {"server": {"batch_size": 9}}]
    passed = configuration.server_arguments(sources, {"transport": way})
    assert (passed["transport"], passed["batch_size"]) == (way, 9)
    assert passed["token"] == [b"correct-horse-battery"]  # of the server; the transport has none of its own
    bare = configuration.server_arguments(load(source, env={}), {"transport": None})
    assert "transport" not in bare


def test_client_arguments(fakes: None) -> None:
    source = {"client": {"address": "way://h:1?window=3"}, "security": {"auth": False}}
    arguments = configuration.client_arguments(source, {"name": "w1", "token": b"x"})
    assert arguments == {
        "address": Address.parse("way://h:1"),
        "auth": False,
        "window": 3,
        "name": "w1",
        "token": b"x",
    }


def test_a_clients_other_tables_are_passed_on(fakes: None) -> None:
    source = {"client": {"address": "way://h:1"}}
    assert configuration.client_arguments(source, {"tables": {"other": 1}})["tables"] == {"other": 1}


def test_a_configuration_can_be_sent_to_a_worker(fakes: None) -> None:
    config = load({"server": {"batch_size": 4, "transport": "way"}}, env={"ECHO_CLIENT__NAME": "w"})
    again: Config = pickle.loads(pickle.dumps(config))
    assert again.explain() == config.explain()
    assert again.server == config.server
    assert again.replace({"server.batch_size": 8}).server.batch_size == 8
    assert again.server.batch_size == 4


def test_where_weights_come_from() -> None:
    source = {"server": {"batch_size": 1, "weights_from": "tcp://learner:7000"}, "client": {"address": "way://h:1", "weights": "shm://relay"}}
    assert str(configuration.load(source, env={}).server.weights_from) == "tcp://learner:7000"
    assert str(configuration.load(source, env={}).client.weights) == "shm://relay"
    for section, key in (("server", "weights_from"), ("client", "weights")):
        with pytest.raises(ConfigError, match=f"{section}.{key}: .*address"):
            configuration.load({section: {key: "no address"}}, env={})

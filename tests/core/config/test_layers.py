"""Sources in layers: who wins, where a value came from, how tables merge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Mapping as AbstractMapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from config_errors import fails

from echo_core.base.errors import ConfigError
from echo_core.config.config import load

pytestmark = pytest.mark.every_python


def test_who_wins_and_where_it_came_from(write: Callable[[str, str], str]) -> None:
    site = write("site.toml", "[server]\nbatch_size = 1\nnum_buffers = 4\nlease_timeout = 5\n")
    mine = write("mine.toml", "[server]\nbatch_size = 2\nlease_timeout = 6.5\n")
    environment = {"ECHO_SERVER__BATCH_SIZE": "3", "ECHO_SERVER__TRANSPORT": "way"}
    line = ["--server.batch_size=4", "client.name = w0"]
    config = load(
        site,
        Path(mine),
        {"server": {"sampler": "draw"}},
        env=environment,
        command_line=line,
        overrides={"server.batch_size": 5},
    )
    assert config.server.batch_size == 5
    assert config.server.num_buffers == 4
    assert config.server.lease_timeout == 6.5
    assert config.client.name == " w0"
    origins = {
        "server.batch_size": "arguments",
        "server.num_buffers": "site.toml",
        "server.lease_timeout": "mine.toml",
        "server.sampler": "mapping 3",
        "server.transport.type": "environment variable ECHO_SERVER__TRANSPORT",
        "client.name": "command line",
        "client.timeout": "default",
        "security.auth": "default",
    }
    assert {key: config.origin(key) for key in origins} == origins
    explained = {key: (value, origin) for key, value, origin in config.explain()}
    assert explained["server.batch_size"] == (5, "arguments")
    assert explained["client.timeout"] == (30.0, "default")
    assert explained["server.transport.type"][0] == "way"


def test_nothing_is_a_configuration_too() -> None:
    config = load(env={})
    assert config.server.batch_size is None
    assert config.server.transports == ()
    assert (config.server.sampler.type, config.server.sampler.options) == ("fifo", {})
    assert (config.client.address, config.client.timeout, config.client.name) == (None, 30.0, None)
    assert (config.security.auth, config.security.allow_insecure) == (True, False)
    assert fails(ConfigError, lambda: config.require("server.batch_size")) == (
        "server.batch_size is missing; add batch_size = ... under [server], "
        "or set ECHO_SERVER__BATCH_SIZE"
    )


def test_tables_merge_and_strings_replace() -> None:
    table = {"server": {"transport": {"type": "way", "port": 1, "threads": 2}}}

    def merged(*sources: Mapping[str, Any], **env: str) -> Any:
        variables = {f"ECHO_SERVER__TRANSPORT{key}": value for key, value in env.items()}
        (transport,) = load(*sources, env=variables).server.transports
        return {"type": transport.type, **transport.options}

    assert merged(table, {"server": {"transport": {"port": 7}}})["threads"] == 2
    assert merged(table, {"server": {"transport": {"type": "way", "port": 7}}})["threads"] == 2
    assert merged(table, __PORT="7") == {"type": "way", "port": "7", "threads": 2}
    assert merged(table, {"server": {"transport": "way"}}) == {"type": "way"}
    assert merged(table, {"server": {"transport": {"type": "shm"}}}) == {"type": "shm"}
    assert merged(table, __TYPE="shm", __PATH="x") == {"type": "shm", "path": "x"}
    assert merged(table, {"server": {"transport": "tcp://[::1]:5?x=1"}}) == {
        "type": "tcp",
        "host": "::1",
        "port": 5,
        "x": "1",
    }
    assert merged({"server": {"transport": "tcp://a:1"}}, __PORT="2")["port"] == "2"
    assert merged(table, **{"": "shm://name"}) == {"type": "shm", "path": "name"}
    assert load(table, {"server": {"transport": None}}, env={}).server.transports == ()
    assert load(table, env={"ECHO_SERVER__TRANSPORT": "none"}).server.transports == ()
    assert merged(table, **{"": '{type = "shm", path = "x"}'}) == {"type": "shm", "path": "x"}


def test_several_transports() -> None:
    both = {"server": {"transport": ["tcp://[::1]:1", {"type": "shm", "path": "x"}]}}
    first, second = load(both, env={}).server.transports
    assert (first.type, first.options) == ("tcp", {"host": "::1", "port": 1})
    assert (second.type, second.options, second.where) == (
        "shm",
        {"path": "x"},
        "server.transport.1",
    )
    changed = load(both, env={"ECHO_SERVER__TRANSPORT__0__PORT": "9"}).server.transports
    assert changed[0].options["port"] == "9"
    assert fails(ConfigError, lambda: load(both, env={"ECHO_SERVER__TRANSPORT__PORT": "9"})) == (
        "environment variable ECHO_SERVER__TRANSPORT__PORT: server.transport.port: "
        "transport is a list; name the entry you mean: server.transport.0.port"
    )
    (one,) = load(both, {"server": {"transport": {"type": "way"}}}, env={}).server.transports
    assert one.type == "way"


def test_any_mapping_will_do() -> None:
    class Custom(AbstractMapping[str, Any]):
        def __init__(self, **items: Any) -> None:
            self.items_ = items

        def __getitem__(self, key: str) -> Any:
            return self.items_[key]

        def __iter__(self) -> Any:
            return iter(self.items_)

        def __len__(self) -> int:
            return len(self.items_)

    source = Custom(server=Custom(batch_size=np.int64(8), sampler=Custom(type="draw", alpha=1)))
    server = load(source, env={}).server
    assert server.batch_size == 8
    assert type(server.batch_size) is int
    assert (server.sampler.type, server.sampler.options) == ("draw", {"alpha": 1})

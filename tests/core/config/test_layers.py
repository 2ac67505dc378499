"""Sources in layers: which one wins, where a value came from, how tables merge."""

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


SHARED = '[shared]\naddress = "way://learner:5555"\n'


def transport_of(config: Any) -> tuple[str, dict[str, Any]]:
    (choice,) = config.server.transports
    return choice.type, dict(choice.options)


def test_one_shared_address_is_both_ends() -> None:
    config = load({"shared": {"address": "way://learner:5555"}}, env={})
    assert transport_of(config) == ("way", {"host": "learner", "port": 5555})
    assert str(config.client.address) == "way://learner:5555"
    assert config.origin("client.address") == config.origin("server.transport.port") == "mapping 1"
    config = load({"shared": {"address": "path://run1"}}, env={})
    assert (transport_of(config), str(config.client.address)) == (("path", {"path": "run1"}), "path://run1")


def test_each_end_adds_its_own_options_to_the_shared_address(fakes: None, write: Callable[[str, str], str]) -> None:
    config = load(write("a.toml", SHARED + "[server.transport]\nthreads = 3\n[client]\nwindow = 7\n"), env={"ECHO_SERVER__TRANSPORT__MODE": "fast"})
    assert transport_of(config) == ("way", {"host": "learner", "port": 5555, "threads": 3, "mode": "fast"})
    assert config.connect_options() == {"window": 7}
    config.check()


def test_the_learner_may_listen_elsewhere_than_at_the_shared_host() -> None:
    shared = {"address": "way://learner:5555", "listen_host": "0.0.0.0"}
    config = load({"shared": shared}, env={})
    assert transport_of(config) == ("way", {"host": "0.0.0.0", "port": 5555})
    assert str(config.client.address) == "way://learner:5555"
    config = load({"shared": shared}, env={}, command_line=["shared.address=path://run1"])  # one setting selects another transport
    assert (transport_of(config), str(config.client.address)) == (("path", {"path": "run1"}), "path://run1")


def test_what_an_end_says_itself_wins_over_the_shared_address(write: Callable[[str, str], str]) -> None:
    path = write("a.toml", SHARED)
    config = load(path, env={}, overrides={"server.transport": "path://mine"})
    assert (transport_of(config), str(config.client.address)) == (("path", {"path": "mine"}), "way://learner:5555")
    config = load(path, env={"ECHO_CLIENT__ADDRESS": "way://other:1"})
    assert (transport_of(config), str(config.client.address)) == (("way", {"host": "learner", "port": 5555}), "way://other:1")
    assert load(path, env={"ECHO_SERVER__TRANSPORT": "none"}).server.transports == ()
    again = load(path, env={}).replace({"shared.address": "way://moved:6666"})
    assert (transport_of(again)[1]["host"], str(again.client.address)) == ("moved", "way://moved:6666")


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        ({"address": "learner:5555"}, 'mapping 1: shared.address: "learner:5555" has no scheme; did you mean "tcp://learner:5555"?'),
        ({"address": "way://learner:5555?threads=3"}, "shared.address: options behind the '?' (threads) belong to one end"),
        ({"listen_host": "0.0.0.0"}, "mapping 1: shared.listen_host: it needs a shared.address"),
        ({"adress": "way://learner:5555"}, "mapping 1: shared.adress: unknown key; did you mean 'address'?"),
    ],
)
def test_errors_of_the_shared_section(shared: dict[str, str], said: str) -> None:
    assert said in fails(ConfigError, lambda: load({"shared": shared}, env={}))


@pytest.mark.parametrize(
    ("transport", "address", "said"),
    [
        ("way://127.0.0.1:5555", "way://127.0.0.1:5555", None),
        ("way://0.0.0.0:5555", "way://learner:5555", None),
        ("way://127.0.0.1:5555", "way://localhost:5555", None),
        (["path://a", "way://0.0.0.0:5555"], "way://learner:5555", None),
        ("path://run1", "path://run1", None),
        ("path://run1", "way://learner:5555", "server.transport is 'path', and the client's address begins with way://"),
        ("way://0.0.0.0:5555", "way://learner:5556", "server.transport listens on port 5555, and the client connects to port 5556"),
        ("way", "way://127.0.0.1:5555", "takes any free port (port = 0), and the client connects to port 5555"),
        ("way://127.0.0.1:5555", "way://learner:5555", "listens for this machine only (host = '127.0.0.1'), and the client connects to 'learner'"),
        ("path://run1", "path://run2", "has the path 'run1', and the client's address has 'run2'"),
        (["path://a", "way://[::1]:1"], "way://[::1]:2", "server.transport.0 is 'path'"),
    ],
)
def test_two_ends_that_do_not_fit_are_noticed(fakes: None, transport: Any, address: str, said: str | None) -> None:
    config = load({"server": {"transport": transport}, "client": {"address": address}}, env={})
    why = config.disagreement()
    if said is None:
        assert why is None
    else:
        assert why is not None and why.startswith(f"mapping 1: client.address: {address} reaches no transport of [server]: ") and said in why


def test_the_defaults_of_plugins_are_explained(fakes: None) -> None:
    config = load({"server": {"transport": "way://127.0.0.1:1", "sampler": "draw"}, "client": {"address": "way://127.0.0.1:1?timeout=3"}}, env={})
    explained = {key: (value, origin) for key, value, origin in config.explain()}
    assert explained["server.transport.threads"] == (1, "default")
    assert explained["server.transport.port"] == (1, "mapping 1")
    assert explained["server.sampler.alpha"] == (0.5, "default")
    assert explained["client.window"] == (64, "default")
    assert "client.token" not in explained and "server.transport.token" not in explained


@pytest.mark.needs("echo-replay")
def test_the_defaults_of_plugins_of_tables_are_explained(fakes: None) -> None:
    tables = [{"name": "a", "capacity": 10, "sampler": "draw"}]
    assert ("server.tables.0.sampler.alpha", 0.5, "default") in load({"server": {"tables": tables}}, env={}).explain()


def test_explaining_needs_no_plugins() -> None:
    config = load({"shared": {"address": "nowhere://learner:1"}}, env={"ECHO_DISABLE_PLUGINS": "draw"})
    assert ("server.transport.type", "nowhere", "mapping 1") in config.explain()


def test_a_misspelt_address_is_guessed_although_another_source_gives_it(fakes: None) -> None:
    config = load({"client": {"adress": "way://a:1"}}, env={}, overrides={"client.address": "way://b:1"})
    assert fails(ConfigError, config.connect_options) == "mapping 1: client.adress: unknown key; did you mean 'address'?"

"""What is wrong in a file, a variable or on the command line is said with its place and the remedy."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from config_errors import fails

from echo_core.base.errors import ConfigError
from echo_core.config import config as configuration
from echo_core.config.config import load

pytestmark = pytest.mark.every_python


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server = 5", "a.toml: server: must be a table: [server]"),
        ("[sever]\nx = 1", "a.toml: sever.x: no section 'sever'; did you mean 'server'?"),
        ("[quite]\nx = 1", "a.toml: quite.x: no section 'quite'; the sections are shared, server, client, security, plugins, cluster, example"),
        (
            "[server]\nbatchsize = 1",
            "a.toml: server.batchsize: unknown key; did you mean 'batch_size'?",
        ),
        (
            "[server]\nbatch_size = '64'",
            "a.toml: server.batch_size: must be a whole number or none, not '64'; "
            "write it without quotes",
        ),
        (
            "[server]\nbatch_size = true",
            "a.toml: server.batch_size: must be a whole number or none, not True",
        ),
        (
            "[server]\nbatch_size = 0",
            "a.toml: server.batch_size: batch_size must be at least 1, not 0",
        ),
        (
            "[server]\nnum_buffers = 1",
            "a.toml: server.num_buffers: num_buffers must be at least 2, not 1",
        ),
        ("[server.transport]\nport = 5", 'a.toml: server.transport: the key "type" is missing; add type = "tcp"'),
        ("[server]\ntransport = {}", "the table is empty"),
        ("[server]\ntransport = 5", "must be a name, an address or a table, not 5"),
        ("[server]\ntransport = 'localhost:5'", 'did you mean "tcp://localhost:5"?'),
        ("[server]\ntransport = 'tcp://h:5?port=6'", "option 'port' of tcp://h:5?port=6 is given"),
        ("[client]\naddress = 'learner:5'", 'a.toml: client.address: "learner:5" has no scheme'),
        ("[client]\ntimeout = -1", "a.toml: client.timeout: timeout must be 0 or more seconds"),
        ("[security]\ntoken = 5", "a.toml: security.token: must be non-empty text"),
        ("[security]\nauth = 'no'", "security.auth: must be true or false, not 'no'; write it"),
        ("[plugins]\ndisable = 'tcp'", "plugins.disable: must be a list (text each), not 'tcp'"),
        ("[plugins]\ndisable = [1]", "a.toml: plugins.disable[0]: must be text, not 1"),
        ("[server\n", "a.toml: is not valid TOML: Expected ']' at the end of a table declaration"),
    ],
)
def test_errors_of_files(write: Callable[[str, str], str], text: str, said: str) -> None:
    path = write("a.toml", text)
    os.chmod(path, 0o600)
    assert said in fails(ConfigError, lambda: load(path, env={}))


def test_errors_of_other_sources(write: Callable[[str, str], str]) -> None:
    assert fails(ConfigError, lambda: load("nowhere.toml")).startswith("nowhere.toml: cannot be")
    yaml = write("a.yaml", "")
    assert "pass the mapping" in fails(ConfigError, lambda: load(yaml))

    def variable(name: str, value: str = "1") -> str:
        return fails(ConfigError, lambda: load(env={name: value}))

    assert variable("ECHO_SERVER__BATCHSIZE") == (
        "environment variable ECHO_SERVER__BATCHSIZE: server.batchsize: unknown key; "
        "did you mean 'batch_size'?"
    )
    assert "no section 'sever'; did you mean 'server'?" in variable("ECHO_SEVER__BATCH_SIZE")
    assert "must be written ECHO_SECTION__KEY" in variable("ECHO_SERVER__")
    assert "must be a whole number or none, not 'x'" in variable("ECHO_SERVER__BATCH_SIZE", "x")
    assert "{'x': '1'}" in variable("ECHO_SERVER__BATCH_SIZE__X")
    load(env={"ECHO_TOKEN": "x", "ECHO_SOMETHING": "y", "OTHER__THING": "z"})

    for item in ("server.batch_size", "=5", "server..x=1"):
        said = fails(ConfigError, lambda item=item: load(env={}, command_line=[item]))
        assert "must be written like server.batch_size=64" in said
    said = fails(ConfigError, lambda: load(env={}, overrides={"server": {"batch": 1}}))
    assert said.startswith("arguments: server.batch: unknown key")
    config = load(env={})
    assert "no section" in fails(ConfigError, lambda: config.origin("sever.port"))
    for source in (None, 5):
        assert "path of a TOML file" in fails(ConfigError, lambda source=source: configuration.server_arguments(source))
    assert "did you mean" in fails(ConfigError, lambda: config.origin("server.batchsize"))

"""Configuration: who wins, where a value came from, and errors that name file, key and remedy."""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
from collections.abc import Callable, Mapping
from collections.abc import Mapping as AbstractMapping
from pathlib import Path
from typing import Any, Literal, Optional

import numpy as np
import pytest

from echo_core import config as configuration
from echo_core.address import Address
from echo_core.config import Config, Text, build_options, load
from echo_core.errors import ConfigError, PluginNotFound, PluginVersionError, SecurityError
from echo_core.plugins import OBSERVERS, SAMPLERS, TRANSPORTS

Install = Callable[..., None]

PLUGINS = """
from dataclasses import dataclass
from typing import Literal
from echo_core.hookspecs import SamplerInfo, TransportInfo, hookimpl
from echo_core.sampler import Sampler
from echo_core.transport import ConnectOptions, ListenOptions, Transport

@hookimpl
def echo_transports():
    return [TransportInfo(name, f"fake_plugins:{name.title()}") for name in ("way", "path")]

@hookimpl
def echo_samplers():
    return [SamplerInfo("fifo", "fake_plugins:Draw"), SamplerInfo("draw", "fake_plugins:Draw")]

@dataclass(frozen=True)
class Tls:
    cert: str
    check: bool = True

class Way(Transport):
    scheme = "way"

    @dataclass(frozen=True, kw_only=True)
    class Options(ListenOptions):
        host: str = "127.0.0.1"
        port: int = 0
        threads: int = 1
        mode: Literal["fast", "safe"] = "safe"
        allow_insecure: bool = False
        tls: Tls | None = None

        def __post_init__(self):
            if self.threads < 1:
                raise ValueError(f"threads must be at least 1, not {self.threads}")

    @dataclass(frozen=True, kw_only=True)
    class ConnectOptions(ConnectOptions):
        window: int = 64

    def listen(self, sink): ...
    @classmethod
    def connect(cls, address, spec, **options): ...

class Path(Way):
    scheme = "path"

    @dataclass(frozen=True, kw_only=True)
    class Options(ListenOptions):
        path: str

class Draw(Sampler):
    storage = "replay"

    @dataclass(frozen=True)
    class Options:
        capacity: int = 10
        alpha: float = 0.5

    def insert(self, keys, priorities=None): ...
    def delete(self, keys): ...
    def update(self, keys, priorities): ...
    def sample(self, n, rng): ...
    def __len__(self): return 0
    def state(self): return {}
    def restore(self, state): ...
"""


@pytest.fixture
def fakes(install: Install) -> None:
    """Transports `way` and `path`, samplers `fifo` and `draw`."""
    names = {"way": "fake_plugins", "path": "fake_plugins"}
    install("echo-way", "0.1", TRANSPORTS, names, fake_plugins=PLUGINS)
    install("echo-draw", "0.1", SAMPLERS, {"fifo": "fake_plugins", "draw": "fake_plugins"})


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """`write("a.toml", text)` in the working directory; returns the name."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        Path(name).write_text(text)
        return name

    return write


def fails(error: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


# ---- layers ----------------------------------------------------------------------------------


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
        "transport is a list; say which one is meant: server.transport.0.port"
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server = 5", "a.toml: server: must be a table: [server]"),
        ("[sever]\nx = 1", "a.toml: sever.x: no section 'sever'; did you mean 'server'?"),
        ("[quite]\nx = 1", "a.toml: quite.x: no section 'quite'; there are server, client, security, plugins, example"),
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
        ("[server.transport]\nport = 5", 'a.toml: server.transport: has no type; add type = "tcp"'),
        ("[server]\ntransport = {}", "the table is empty"),
        ("[server]\ntransport = 5", "must be a name, an address or a table, not 5"),
        ("[server]\ntransport = 'localhost:5'", 'did you mean "tcp://localhost:5"?'),
        ("[server]\ntransport = 'tcp://h:5?port=6'", "option 'port' of tcp://h:5?port=6 is given"),
        ("[client]\naddress = 'learner:5'", 'a.toml: client.address: "learner:5" has no scheme'),
        ("[client]\ntimeout = -1", "a.toml: client.timeout: timeout must be 0 or more seconds"),
        ("[security]\ntoken = 5", "a.toml: security.token: must be text"),
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
    assert "is written ECHO_SECTION__KEY" in variable("ECHO_SERVER__")
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


# ---- security and plugins --------------------------------------------------------------------


def test_a_token_in_a_file_is_private_and_never_shows(write: Callable[[str, str], str]) -> None:
    path = write("a.toml", "[security]\ntoken = 'correct-horse-battery'\n")
    os.chmod(path, 0o644)
    assert fails(SecurityError, lambda: load(path, env={})).endswith("run: chmod 600 a.toml")
    os.chmod(path, 0o600)
    config = load(path, env={})
    assert config.security.find_token() == b"correct-horse-battery"
    assert "horse" not in repr(config) + repr(config.security) + str(config.explain())
    line = ["security.token=correct-horse-battery"]
    said = fails(ConfigError, lambda: load(env={}, command_line=line))
    assert "visible" in said
    assert "horse" not in said


def test_a_token_of_one_transport_is_a_secret_too(write: Callable[[str, str], str]) -> None:
    text = "[server.transport]\ntype = 'way'\ntoken = 'correct-horse-battery'\n"
    path = write("a.toml", text)
    os.chmod(path, 0o640)
    assert "run: chmod 600 a.toml" in fails(SecurityError, lambda: load(path, env={}))
    os.chmod(path, 0o600)
    for config in (load(path, env={}), load({"server": {"transport": "way://h:1?token=horse"}})):
        assert "horse" not in repr(config) + repr(config.server) + str(config.explain())


def test_of_token_and_token_file_the_later_one_counts(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token-of-the-file")
    (tmp_path / "token").chmod(0o600)
    file = {"security": {"token_file": str(tmp_path / "token")}}
    text = {"security": {"token": "token-as-such"}}
    assert load(file, text, env={}).security.find_token() == b"token-as-such"
    assert load(text, file, env={}).security.find_token() == b"token-of-the-file"
    both = {"security": file["security"] | text["security"]}
    assert "keep one" in fails(ConfigError, lambda: load(both, env={}))
    off = load(text, env={"ECHO_SECURITY__AUTH": "no"}).security
    assert (off.find_token(), off.names_token) == (None, False)


def test_paths_know_the_home_directory() -> None:
    config = load({"security": {"token_file": "~/x"}}, env={})
    assert config.security.token_file == Path.home() / "x"


def test_plugins_section(fakes: None) -> None:
    config = load({"server": {"transport": "way"}}, env={"ECHO_PLUGINS__DISABLE": "way, other"})
    assert config.plugins.disable == ("way", "other")
    said = fails(PluginNotFound, lambda: config.server.transports[0].create())
    assert "mapping 1: server.transport: transport 'way' (echo-way 0.1) is disabled by" in said
    load({"plugins": {"require": ["echo-way>=0.1"]}}, env={})
    with pytest.raises(PluginVersionError, match="echo-way>=2 is required"):
        load({"plugins": {"require": ["echo-way>=2"]}}, env={})
    env = {"ECHO_DISABLE_PLUGINS": "way"}
    with pytest.raises(PluginNotFound, match="ECHO_DISABLE_PLUGINS"):
        load({"server": {"transport": "way"}}, env=env).server.transports[0].create()


# ---- the second phase ------------------------------------------------------------------------


def test_the_plugin_checks_its_own_options(fakes: None, write: Callable[[str, str], str]) -> None:
    text = """
[server]
sampler = { type = "draw", capacity = 1_000, alpha = 1 }
[server.transport]
type = "way"
threads = 2
tls = { cert = "c.pem" }
"""
    env = {"ECHO_SERVER__TRANSPORT__PORT": "77", "ECHO_SERVER__TRANSPORT__MODE": "fast"}
    config = load(write("a.toml", text), env=env)
    transport = config.server.transports[0].create(allow_insecure=True, unknown=1)
    options = transport.options
    assert (options.host, options.port, options.threads) == ("127.0.0.1", 77, 2)
    assert (options.mode, options.allow_insecure) == ("fast", True)
    assert dataclasses.asdict(options.tls) == {"cert": "c.pem", "check": True}
    sampler = config.server.sampler.create()
    assert (sampler.capacity, sampler.options.alpha) == (1000, 1.0)
    assert isinstance(sampler.options.alpha, float)
    config.check()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"prot": 1}, "server.transport.prot: unknown key; did you mean 'port'?"),
        ({"port": "1"}, "server.transport.port: must be a whole number, not '1'; write it without"),
        ({"port": 1.5}, "server.transport.port: must be a whole number, not 1.5"),
        ({"mode": "quick"}, "server.transport.mode: must be 'fast' or 'safe', not 'quick'"),
        ({"threads": 0}, "server.transport.threads: threads must be at least 1, not 0"),
        ({"tls": {}}, "server.transport.tls.cert: missing; add cert = ... (text) to "),
        ({"tls": {"cert": 1}}, "server.transport.tls.cert: must be text, not 1"),
        ({"tls": 5}, "server.transport.tls: must be a table or none, not 5"),
    ],
)
def test_errors_of_plugin_options(
    fakes: None, write: Callable[[str, str], str], table: dict[str, Any], said: str
) -> None:
    config = load({"server": {"transport": {"type": "way", **table}}}, env={})
    text = fails(ConfigError, lambda: config.server.transports[0].create())
    assert said in text
    if "missing" not in said:
        assert text.startswith("mapping 1: ")


def test_an_address_without_a_host_gives_a_path(fakes: None) -> None:
    (choice,) = load({"server": {"transport": "path://a/b?timeout=2"}}, env={}).server.transports
    assert choice.create().options.path == "a/b"
    assert choice.create().options.timeout == 2.0
    (bare,) = load({"server": {"transport": "path"}}, env={}).server.transports
    assert "server.transport.path: missing; add path = ... (text)" in fails(
        ConfigError, bare.create
    )


def test_unknown_plugins_say_where_they_were_asked_for(write: Callable[[str, str], str]) -> None:
    path = write("a.toml", "[server]\ntransport = 'wya://h:1'\n")
    config = load(path, env={})
    said = fails(PluginNotFound, lambda: config.server.transports[0].load())
    assert said.startswith("a.toml: server.transport: no transport named 'wya' (installed:")


def test_reading_needs_no_plugin_of_the_other_side() -> None:
    sections = {"server": {"transport": "way://h:1", "sampler": "nobody has this"}}
    assert load(sections, {"client": {"address": "way://h:1"}}, env={}).client.address


def test_client_options(fakes: None) -> None:
    client = {"address": "way://h:1?window=3&reconnect=no", "name": "w0", "window_bytes": 1024}
    config = load({"client": client}, env={"ECHO_CLIENT__WINDOW": "5"})
    assert config.client.address == Address.parse("way://h:1?window=3&reconnect=no")
    assert config.connect_options() == {
        "window": 5,
        "reconnect": False,
        "name": "w0",
        "window_bytes": 1024,
    }
    for extra, said in [
        ({"windw": 1}, "mapping 1: client.windw: unknown key; did you mean 'window'?"),
        ({"timout": 1}, "mapping 1: client.timout: unknown key; did you mean 'timeout'?"),
        ({"window": "x"}, "mapping 1: client.window: must be a whole number, not 'x'"),
        ({"token": "secret"}, "a token belongs into [security]"),
    ]:
        wrong = load({"client": client | extra}, env={})
        text = fails(ConfigError, wrong.connect_options)
        assert said in text
        assert "secret" not in text
    typo = load({"client": {"adress": "way://h:1"}}, env={})
    assert "mapping 1: client.adress: unknown key; did you mean 'address'?" in fails(
        ConfigError, typo.connect_options
    )
    missing = load(env={})
    assert "client.address is missing" in fails(ConfigError, missing.connect_options)
    away = load({"client": {"address": "wya://h:1"}}, env={})
    assert "mapping 1: client.address: no transport named 'wya'" in fails(
        PluginNotFound, away.connect_options
    )


# ---- arguments for Server and Client ---------------------------------------------------------


def test_server_arguments(fakes: None, install: Install) -> None:
    observer = """
from echo_core.hookspecs import hookimpl
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
    assert isinstance(arguments.pop("host"), configuration.PluginHost)
    assert arguments == {
        "batch_size": 4,
        "num_buffers": 5,
        "lease_timeout": 10.0,
        "token": [b"correct-horse-battery"],
        "extra": object,
    }
    import fake_watch

    assert fake_watch.seen == [4]
    sources = [source, {"server": {"batch_size": 9}}]
    passed = configuration.server_arguments(sources, {"transport": way})
    assert (passed["transport"], passed["batch_size"]) == (way, 9)
    assert "token" not in passed
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


def test_a_configuration_can_be_sent_to_a_worker(fakes: None) -> None:
    config = load({"server": {"batch_size": 4, "transport": "way"}}, env={"ECHO_CLIENT__NAME": "w"})
    again: Config = pickle.loads(pickle.dumps(config))
    assert again.explain() == config.explain()
    assert again.server == config.server
    assert again.replace({"server.batch_size": 8}).server.batch_size == 8
    assert again.server.batch_size == 4


# ---- build_options ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Everything:
    text: str = ""
    whole: int = 0
    number: float = 0.0
    flag: bool = False
    path: Path = Path()
    choice: Literal["a", 1, True] = "a"
    maybe: Optional[int] = None  # noqa: UP045
    either: int | str | None = None
    many: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    names: list[str] = dataclasses.field(default_factory=list)
    table: dict[str, float] = dataclasses.field(default_factory=dict)
    anything: Any = None
    secret: bytes | None = dataclasses.field(default=None, repr=False)
    internal: int = dataclasses.field(default=0, init=False)


@pytest.mark.parametrize(
    ("key", "given", "built"),
    [
        ("text", "5", "5"),
        ("text", Text("5"), "5"),
        ("whole", 5, 5),
        ("whole", Text(" 1_000 "), 1000),
        ("whole", np.uint8(3), 3),
        ("number", 3, 3.0),
        ("number", Text("inf"), math.inf),
        ("flag", True, True),
        ("flag", Text("OFF"), False),
        ("flag", Text("1"), True),
        ("path", "~/x", Path.home() / "x"),
        ("path", Text("/x"), Path("/x")),
        ("choice", 1, 1),
        ("choice", Text("1"), 1),
        ("choice", Text("yes"), True),
        ("maybe", None, None),
        ("maybe", Text("none"), None),
        ("maybe", Text("3"), 3),
        ("either", "3", "3"),
        ("either", Text("3"), 3),
        ("either", Text("x"), "x"),
        ("many", [1, 2], (1, 2)),
        ("many", Text("1, 2"), (1, 2)),
        ("many", Text("[1, 2]"), (1, 2)),
        ("many", Text(""), ()),
        ("pair", [1, "x"], (1, "x")),
        ("names", ("a", "b"), ["a", "b"]),
        ("names", Text('["a,b"]'), ["a,b"]),
        ("table", {"a": 1}, {"a": 1.0}),
        ("table", Text("{a = 1}"), {"a": 1.0}),
        ("anything", Text("[1]"), [1]),
        ("anything", Text("a b"), "a b"),
        ("anything", Text("1\nb = 2"), "1\nb = 2"),
        ("secret", b"x", b"x"),
        ("secret", Text("x"), b"x"),
    ],
)
def test_conversions(key: str, given: object, built: object) -> None:
    value = getattr(build_options(Everything, {key: given}), key)
    assert value == built
    assert type(value) is type(built)


@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        ("text", 5, "text: must be text, not 5"),
        ("whole", True, "whole: must be a whole number, not True"),
        ("whole", 5.0, "whole: must be a whole number, not 5.0"),
        ("whole", Text("5.5"), "whole: must be a whole number, not '5.5'"),
        ("number", "1e3", "number: must be a number, not '1e3'; write it without quotes"),
        ("flag", 1, "flag: must be true or false, not 1"),
        ("path", "", "path: must be a path, not ''"),
        ("choice", "b", "choice: must be 'a' or 1 or True, not 'b'"),
        ("choice", 1.0, "choice: must be"),
        ("maybe", "x", "maybe: must be a whole number or none, not 'x'"),
        ("many", "1", "many: must be a list (a whole number each), not '1'"),
        ("many", [1, "2"], "many[1]: must be a whole number, not '2'; write it without quotes"),
        ("pair", [1], "pair: must be a list of 2 (a whole number, text), not [1]"),
        ("table", [], "table: must be a table, not []"),
        ("table", {"a": "b"}, "table.a: must be a number, not 'b'"),
        ("secret", "x-y-z", "secret: must be bytes or none, not str (not shown)"),
        ("internal", 1, "internal: unknown key"),
        ("wohle", 1, "wohle: unknown key; did you mean 'whole'?"),
    ],
)
def test_refusals(key: str, given: object, said: str) -> None:
    origins = {f"here.{key}": "a.toml"}
    text = fails(ConfigError, lambda: build_options(Everything, {key: given}, "here", origins))
    assert f"here.{said}" in text
    assert text.startswith("a.toml: ") or "." in key or said.startswith(f"{key}.")
    assert "x-y-z" not in text


def test_no_options_at_all() -> None:
    @dataclasses.dataclass
    class Nothing:
        pass

    assert build_options(Nothing, {}) == Nothing()
    said = fails(ConfigError, lambda: build_options(Nothing, {"x": 1}, "sampler"))
    assert said == "sampler.x: unknown key; there are no options here"

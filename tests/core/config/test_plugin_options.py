"""The second phase: a plugin is found when it is needed, and checks its own options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from config_errors import fails

from echo_core.base.address import Address
from echo_core.base.errors import ConfigError, PluginNotFound, PluginVersionError
from echo_core.config.config import load
from echo_core.plugins import discovery

pytestmark = pytest.mark.every_python


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


@pytest.mark.parametrize("text", ["way://h:1?host=i", "way://h:0?port=1", "path://a?path=b"])
def test_what_an_address_says_twice_is_refused(fakes: None, text: str) -> None:
    address = Address.parse(text)
    option = next(iter(address.options))
    for make in (
        lambda: discovery.transport_class(address.scheme).at(address),
        lambda: load({"server": {"transport": text}}, env={}),
    ):
        assert f"option {option!r} of {text} is given twice" in fails(ConfigError, make)
    way = discovery.transport_class("way").at(Address.parse("way://h:1?threads=2"), host="i", threads=3)
    assert (way.options.host, way.options.port, way.options.threads) == ("i", 1, 3)


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
        ({"token": "secret"}, "a token belongs in [security]"),
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

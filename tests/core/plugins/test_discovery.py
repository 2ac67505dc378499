"""How plugins are found, chosen and disabled, with distributions made of nothing but a dist-info in a temporary path."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from plugin_sources import TRANSPORT

from echo_core.base.errors import (
    ConfigError,
    PluginConflict,
    PluginNotFound,
    PluginVersionError,
)
from echo_core.base.installing import how_to_install
from echo_core.plugins import discovery, hookspecs
from echo_core.plugins.discovery import OBSERVERS, SAMPLERS, TRANSPORTS, PluginHost
from echo_core.plugins.hookspecs import PLUGIN_API, TransportInfo

pytestmark = pytest.mark.every_python

Install = Callable[..., None]


def test_listing_imports_nothing(way: None) -> None:
    (record,) = discovery.installed(TRANSPORTS)
    assert (record.name, record.value) == ("way", "fake_way")
    assert (record.distribution, record.version) == ("echo-way", "0.1")
    assert (record.error, record.disabled, record.info) == (None, None, None)
    assert discovery.installed(SAMPLERS) == discovery.installed(OBSERVERS) == []
    assert not any(name.startswith("fake_") for name in sys.modules)


def test_a_distribution_that_is_just_being_installed_breaks_no_other(way: None, install: Install) -> None:
    install("echo-half", "1", TRANSPORTS, {"half": "fake_half"}, fake_half="")
    (metadata,) = [path for entry in sys.path for path in Path(entry).glob("echo_half-1.dist-info/METADATA")]
    metadata.unlink()
    half, whole = discovery.installed(TRANSPORTS)
    assert (half.name, half.distribution, half.version) == ("half", "?", "?")
    assert (whole.name, whole.error) == ("way", None)
    assert discovery.transport("way").name == "way"
    with pytest.raises(PluginNotFound, match="disabled by ECHO_DISABLE_PLUGINS"):
        PluginHost(env={"ECHO_DISABLE_PLUGINS": "way"}).transport("way")


def test_selecting_imports_one_and_describing_does_not_import_the_factory(
    way: None, install: Install
) -> None:
    install("echo-other", "1", TRANSPORTS, {"other": "fake_other"}, fake_other="raise SystemError")
    info = discovery.transport("way")
    assert info == TransportInfo("way", "fake_way_impl:Way", client="fake_way_impl:Client")
    assert info.schemes == ("way",)
    assert "fake_way" in sys.modules
    assert "fake_way_impl" not in sys.modules
    assert discovery.transport_class("way").__name__ == "Way"
    assert discovery.client_class("way").__name__ == "Client"
    assert "fake_other" not in sys.modules


def test_a_scheme_is_an_entry_point_of_its_own(install: Install) -> None:
    source = """
from echo_core.plugins.hookspecs import TransportInfo, hookimpl

@hookimpl
def echo_transports():
    return [TransportInfo("way", "fake_two:Way", schemes=("way", "way+tls"))]
"""
    names = {"way": "fake_two", "way+tls": "fake_two"}
    install("echo-two", "1", TRANSPORTS, names, fake_two=source)
    assert discovery.transport("way+tls").name == "way"


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("look_up", "name", "text"),
    [
        (
            discovery.transport,
            "rdma",
            "transport 'rdma' is not installed; " + how_to_install("echo-core[rdma]"),
        ),
        (
            discovery.sampler,
            "fifo",
            "sampler 'fifo' is not installed; " + how_to_install("echo-core[samplers]"),
        ),
        (
            discovery.transport,
            "tpc",
            "no transport named 'tpc' (installed: none); did you mean 'tcp'? Then " + how_to_install("echo-core[tcp]"),
        ),
        (discovery.sampler, "zzzz", "no sampler named 'zzzz' (installed: none)"),
    ],
)
def test_what_is_not_there(look_up: Callable[[str], object], name: str, text: str) -> None:
    with pytest.raises(PluginNotFound) as error:
        look_up(name)
    assert str(error.value) == text
    assert isinstance(error.value, ImportError)


def test_a_near_miss_of_what_is_there(install: Install) -> None:
    for name in ("tcp", "grpc", "shm"):
        install(f"echo-{name}", "0.1", TRANSPORTS, {name: f"fake_{name}"})
    with pytest.raises(PluginNotFound) as error:
        discovery.transport_class("tpc")
    assert str(error.value) == (
        "no transport named 'tpc' (installed: grpc, shm, tcp); did you mean 'tcp'?"
    )


def test_two_distributions_with_one_name(install: Install, way: None) -> None:
    install("echo-shm", "0.1", TRANSPORTS, {"shm": "fake_a"})
    install("other-shm", "2.0", TRANSPORTS, {"shm": "fake_b"})
    expected = (
        "'shm' is provided by more than one distribution: echo-shm 0.1, other-shm 2.0; "
        "uninstall or disable one"
    )
    with pytest.raises(PluginConflict) as error:
        discovery.transport("shm")
    assert str(error.value).startswith(expected)
    errors = [record.error for record in discovery.installed(TRANSPORTS)]
    assert [bool(text and text.startswith(expected)) for text in errors] == [True, True, False]
    assert discovery.transport("way").name == "way"


def test_disabling_one_of_two_settles_it(install: Install, way: None) -> None:
    install("other-way", "2.0", TRANSPORTS, {"way": "fake_b"})
    host = PluginHost(disable=["Other_Way"])
    assert host.transport("way").name == "way"
    by = {record.distribution: record.disabled for record in host.installed(TRANSPORTS)}
    assert by == {"echo-way": None, "other-way": "[plugins] disable"}
    assert [record.error for record in host.installed(TRANSPORTS)] == [None, None]


@pytest.mark.parametrize("listed", ["way", "x,echo-way", "x ECHO_WAY"])
def test_disabled_by_the_environment(
    way: None, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    monkeypatch.setenv("ECHO_DISABLE_PLUGINS", listed)
    with pytest.raises(PluginNotFound) as error:
        discovery.transport("way")
    assert str(error.value) == (
        "transport 'way' (echo-way 0.1) is disabled by ECHO_DISABLE_PLUGINS; "
        "take 'way' or 'echo-way' out of it"
    )
    assert PluginHost(env={}).transport("way").name == "way"


def test_another_plugin_api(install: Install) -> None:
    source = TRANSPORT.format(name="old", module="fake_old", api=0)
    install("echo-old", "0.1", TRANSPORTS, {"old": "fake_old"}, fake_old=source)
    with pytest.raises(PluginVersionError) as error:
        discovery.transport("old")
    assert str(error.value) == (
        f"echo-old 0.1 was written for echo plugin API 0, and this echo-core has {PLUGIN_API}; "
        "a newer plugin is needed: install echo-old from where its author offers it"
    )
    assert discovery.installed(TRANSPORTS)[0].error == str(error.value)


def test_a_newer_plugin_api_asks_for_a_newer_core(install: Install) -> None:
    source = TRANSPORT.format(name="new", module="fake_new", api=PLUGIN_API + 1)
    install("echo-new", "9", TRANSPORTS, {"new": "fake_new"}, fake_new=source)
    with pytest.raises(PluginVersionError, match=re.escape(f"a newer echo-core is needed: {how_to_install('echo-core')}")):
        discovery.transport("new")


def test_requirements(way: None) -> None:
    PluginHost(require=["echo-way>=0.1", "echo_way<1"]).check_required()
    for require, error, text in [
        (
            "echo-way>=0.2",
            PluginVersionError,
            "[plugins] require: echo-way>=0.2 is required, but echo-way 0.1 is installed; "
            "install echo-way>=0.2 from where its author offers it, or take it out of [plugins] require",
        ),
        (
            "echo-rdma>=0.1",
            PluginNotFound,
            f"[plugins] require: echo-rdma is not installed; {how_to_install('echo-rdma>=0.1')}, or take it out of [plugins] require",
        ),
    ]:
        with pytest.raises(error) as caught:
            PluginHost(require=[require]).check_required()
        assert str(caught.value) == text
    with pytest.raises(ConfigError, match=r'must be written like "echo-rdma>=0\.1"'):
        PluginHost(require=["echo way"]).check_required()
    with pytest.raises(ConfigError, match="disabled by"):
        PluginHost(disable=["echo.way"], require=["echo-way"]).check_required()


def test_every_hook_is_documented() -> None:
    hooks = [name for name in vars(hookspecs) if name.startswith("echo_")]
    assert sorted(hooks) == [
        "echo_configure",
        "echo_peer_connected",
        "echo_peer_lost",
        "echo_samplers",
        "echo_stats",
        "echo_transports",
    ]
    assert all(getattr(hookspecs, name).__doc__ for name in hooks)

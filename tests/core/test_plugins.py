"""Discovery, with distributions made of nothing but a dist-info in a temporary path."""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pluggy
import pytest

from echo_core.base.errors import (
    ConfigError,
    PluginConflict,
    PluginError,
    PluginNotFound,
    PluginVersionError,
)
from echo_core.base.installing import how_to_install
from echo_core.plugins import discovery, hookspecs
from echo_core.plugins.discovery import OBSERVERS, SAMPLERS, TRANSPORTS, PluginHost
from echo_core.plugins.hookspecs import PLUGIN_API, TransportInfo

pytestmark = pytest.mark.every_python

Install = Callable[..., None]

TRANSPORT = """
from echo_core.plugins.hookspecs import TransportInfo, hookimpl

@hookimpl
def echo_transports():
    return [TransportInfo({name!r}, "{module}_impl:Way", client="{module}_impl:Client", api={api})]
"""
TRANSPORT_CLASS = """
from echo_core.wire.transport import Transport

class Way(Transport):
    scheme = "way"
    def listen(self, sink): ...
    @classmethod
    def connect(cls, address, spec, **options): ...

class Client: ...
"""


@pytest.fixture
def way(install: Install) -> None:
    """A transport `way` of echo-way 0.1, complete."""
    source = TRANSPORT.format(name="way", module="fake_way", api=1)
    names = {"way": "fake_way"}
    install("echo-way", "0.1", TRANSPORTS, names, fake_way=source, fake_way_impl=TRANSPORT_CLASS)


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


def test_samplers_are_checked_to_be_samplers(install: Install) -> None:
    source = """
from echo_core.plugins.hookspecs import SamplerInfo, hookimpl
from echo_core.store.sampler import Sampler

@hookimpl
def echo_samplers():
    return [SamplerInfo("dict", "builtins:dict"), SamplerInfo("real", "fake_samplers:Real")]

class Real(Sampler):
    storage = "stream"
    insert = delete = update = sample = __len__ = state = restore = lambda self: None
"""
    names = {"dict": "fake_samplers", "real": "fake_samplers"}
    install("echo-s", "1", SAMPLERS, names, fake_samplers=source)
    assert discovery.sampler("dict").factory == "builtins:dict"
    assert discovery.sampler_class("real").__name__ == "Real"
    with pytest.raises(PluginError, match=r"'dict' \(echo-s 1\).*not a subclass of .*Sampler"):
        discovery.sampler_class("dict")


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


def test_a_broken_plugin_is_listed_and_breaks_nobody_else(install: Install, way: None) -> None:
    broken = "import module_that_is_not_there"
    install("echo-broken", "3", TRANSPORTS, {"broken": "fake_broken"}, fake_broken=broken)
    records = PluginHost().examine(TRANSPORTS)
    by_name = {record.name: record for record in records}
    assert by_name["way"].error is None
    assert by_name["way"].info == discovery.transport("way")
    assert by_name["broken"].info is None
    text = by_name["broken"].error
    assert text is not None
    assert text.startswith(
        "transport 'broken' (echo-broken 3) failed to import: ModuleNotFoundError: No module named"
    )
    assert text.endswith(
        "install a version of echo-broken that works with this Python and this echo-core, "
        "or disable it: ECHO_DISABLE_PLUGINS=echo-broken"
    )
    assert [r.error for r in discovery.installed(TRANSPORTS) if r.name == "broken"] == [text]
    with pytest.raises(PluginError) as error:
        discovery.transport("broken")
    assert str(error.value) == text
    assert isinstance(error.value.__cause__, ModuleNotFoundError)


def test_a_mended_plugin_is_listed_without_its_error(install: Install, site: Path) -> None:
    source = TRANSPORT.format(name="mend", module="fake_mend", api=1)
    install("echo-mend", "3", TRANSPORTS, {"mend": "fake_mend"}, fake_mend="1 / 0")
    assert PluginHost().examine(TRANSPORTS)[0].error
    (site / "fake_mend.py").write_text(source)
    importlib.invalidate_caches()
    assert PluginHost().examine(TRANSPORTS)[0].error is None


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "fake_odd describes no transport; it needs a function echo_transports() with the decorator @hookimpl"),
        (TRANSPORT.format(name="even", module="fake_odd", api=1), "offers even, not 'odd'"),
        (TRANSPORT.replace("TransportInfo(", "len("), "failed to import: TypeError"),
        (TRANSPORT.replace("[TransportInfo", "['x', TransportInfo"), "returned 'x'"),
        (TRANSPORT.replace("def echo_transports", "def echo_transport"), "unknown hook"),
        (
            TRANSPORT.replace("def echo_transports", "def echo_transport"),
            "did you mean 'echo_transports'?",
        ),
    ],
)
def test_odd_descriptions(install: Install, source: str, said: str) -> None:
    source = source.replace("{name!r}", "'odd'").replace("{module}", "m").replace("{api}", "1")
    install("echo-odd", "1", TRANSPORTS, {"odd": "fake_odd"}, fake_odd=source)
    with pytest.raises(PluginError) as error:
        discovery.transport("odd")
    assert said in str(error.value)
    assert "'odd' (echo-odd 1)" in str(error.value)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("builtins:dict", "not a subclass of echo_core.wire.transport.Transport"),
        ("builtins:len", "builtins:len is not a class"),
        ("builtins:Nope", "no attribute 'Nope'"),
        ("fake_nowhere:X", "No module named 'fake_nowhere'"),
    ],
)
def test_odd_factories(install: Install, factory: str, said: str) -> None:
    source = TRANSPORT.format(name="odd", module="m", api=1).replace("m_impl:Way", factory)
    install("echo-odd", "1", TRANSPORTS, {"odd": "fake_odd"}, fake_odd=source)
    with pytest.raises(PluginError) as error:
        discovery.transport_class("odd")
    assert said in str(error.value)


def test_no_client_class(install: Install) -> None:
    source = TRANSPORT.format(name="odd", module="m", api=1).replace('client="m_impl:Client", ', "")
    install("echo-odd", "1", TRANSPORTS, {"odd": "fake_odd"}, fake_odd=source)
    with pytest.raises(PluginError, match=r'use Client\("odd://..."\)'):
        discovery.client_class("odd")


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


OBSERVER = """
from echo_core.plugins.hookspecs import hookimpl

seen = []

@hookimpl
def echo_peer_lost(peer, reason):
    seen.append(reason)
"""


def test_observers(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("echo-watch", "1", OBSERVERS, {"watch": "fake_watch"}, fake_watch=OBSERVER)
    install("echo-twin", "1", OBSERVERS, {"watch": "fake_twin"}, fake_twin=OBSERVER)
    install("echo-sick", "1", OBSERVERS, {"sick": "fake_sick"}, fake_sick="1 / 0")

    class Mine:
        @hookspecs.hookimpl
        def echo_peer_lost(self, peer: object) -> None:
            raise ValueError("mine")

    with caplog.at_level(logging.WARNING, logger="echo"):
        manager = discovery.observers(Mine())
    assert isinstance(manager, pluggy.PluginManager)
    assert "observer 'sick' (echo-sick 1) failed to import: ZeroDivisionError" in caplog.text
    caplog.clear()
    discovery.notify(manager, "echo_peer_lost", peer=None, reason="gone")
    assert sys.modules["fake_watch"].seen == sys.modules["fake_twin"].seen == ["gone"]
    assert "ValueError: mine" in caplog.text


def test_an_observer_with_a_hook_nobody_calls(install: Install) -> None:
    source = OBSERVER.replace("echo_peer_lost(peer", "echo_peer_loss(peer")
    install("echo-watch", "1", OBSERVERS, {"watch": "fake_watch"}, fake_watch=source)
    with pytest.raises(PluginError, match=r"\(echo-watch 1\).*did you mean 'echo_peer_lost'\?"):
        discovery.observers()
    assert PluginHost(disable=["watch"]).observers().get_plugins() == set()
    (record,) = PluginHost().examine(OBSERVERS)
    assert record.error and "echo_peer_loss" in record.error


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


def test_a_broken_editable_plugin_is_mended_where_its_code_is(install: Install, site: Path) -> None:
    install("echo-mine", "1", TRANSPORTS, {"mine": "fake_mine"}, fake_mine="1 / 0")
    (metadata,) = [path for entry in sys.path for path in Path(entry).glob("echo_mine-1.dist-info")]
    (metadata / "direct_url.json").write_text(json.dumps({"url": "file:///home/me/my%20way", "dir_info": {"editable": True}}))
    with pytest.raises(PluginError) as error:
        discovery.transport("mine")
    assert str(error.value).endswith("mend the code in /home/me/my way, or disable it: ECHO_DISABLE_PLUGINS=echo-mine")


FORGOTTEN = TRANSPORT.replace("@hookimpl\n", "").format(name="odd", module="m", api=1)
ONE = TRANSPORT.replace("return [", "return ").replace("api={api})]", "api=1)").format(name="odd", module="m")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (FORGOTTEN, "echo_transports() has no @hookimpl, so Echo would never call it; write @hookimpl above it (fake_odd.py"),
        (ONE, "; return a list of it: [TransportInfo(...)]"),
    ],
)
def test_a_mistake_in_the_hook_says_what_to_write(install: Install, source: str, said: str) -> None:
    install("echo-odd", "1", TRANSPORTS, {"odd": "fake_odd"}, fake_odd=source)
    with pytest.raises(PluginError) as error:
        discovery.transport("odd")
    assert said in re.sub(r"\(/[^ ]*/", "(", str(error.value)) and "'odd' (echo-odd 1)" in str(error.value)


def test_an_observer_without_the_decorator_is_an_error() -> None:
    class Mine:
        def echo_peer_lost(self, peer: object, reason: str) -> None: ...

    with pytest.raises(PluginError, match=r"echo_peer_lost\(\) has no @hookimpl"):
        discovery.observers(Mine())


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('    scheme = "way"\n', "", 'Way has no scheme; add scheme = "NAME" to it'),
        ("    def listen(self, sink): ...\n", "", "Way lacks listen(); define what is missing"),
        ("class Way(Transport):", "class Mine(ListenOptions):\n    path: str\n\nclass Way(Transport):\n    Options = Mine",
         "Way.Options is the class Mine, which is no dataclass; write @dataclass(frozen=True, kw_only=True) above it"),
        ("class Way(Transport):", "class Way(Transport):\n    class Options: ...", "Way.Options is the class Options, which is no dataclass"),
        ("class Way(Transport):", "@dataclass\nclass Mine: ...\n\nclass Way(Transport):\n    ConnectOptions = Mine",
         "Way.ConnectOptions is the class Mine, which lacks the options that Echo itself reads; derive it from ConnectOptions"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_class_says_what_to_write(install: Install, before: str, after: str, said: str) -> None:
    head = "from dataclasses import dataclass\nfrom echo_core.base.transport_options import ListenOptions\n"
    assert before in TRANSPORT_CLASS
    source = TRANSPORT.format(name="way", module="fake_way", api=1)
    install("echo-way", "0.1", TRANSPORTS, {"way": "fake_way"}, fake_way=source, fake_way_impl=head + TRANSPORT_CLASS.replace(before, after))
    with pytest.raises(PluginError) as error:
        discovery.transport_class("way")
    assert str(error.value).startswith(f"transport 'way' (echo-way 0.1): {said}")
    if "lacks listen" not in said:  # Python itself makes no object of a class that lacks a method
        with pytest.raises(PluginError, match=re.escape(said)):
            sys.modules["fake_way_impl"].Way()


def test_a_sampler_without_storage_says_what_to_write(install: Install) -> None:
    source = """
from echo_core.plugins.hookspecs import SamplerInfo, hookimpl
from echo_core.store.sampler import Sampler

@hookimpl
def echo_samplers():
    return [SamplerInfo("draw", "fake_draw:Draw")]

class Draw(Sampler):
    insert = delete = update = sample = __len__ = state = restore = lambda self: None
"""
    install("echo-draw", "1", SAMPLERS, {"draw": "fake_draw"}, fake_draw=source)
    with pytest.raises(PluginError, match=re.escape('Draw has no storage; add storage = "replay" to it')):
        discovery.sampler_class("draw")

"""Plugins that are broken or odd: they are listed, break nobody else, and the error says what to write."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from plugin_sources import TRANSPORT, TRANSPORT_CLASS

from echo_core.base.errors import PluginError
from echo_core.plugins import discovery
from echo_core.plugins.discovery import SAMPLERS, TRANSPORTS, PluginHost

pytestmark = pytest.mark.every_python

Install = Callable[..., None]


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


def test_a_broken_editable_plugin_is_mended_where_its_code_is(install: Install, site: Path) -> None:
    install("echo-mine", "1", TRANSPORTS, {"mine": "fake_mine"}, fake_mine="1 / 0")
    (metadata,) = [path for entry in sys.path for path in Path(entry).glob("echo_mine-1.dist-info")]
    (metadata / "direct_url.json").write_text(json.dumps({"url": "file:///home/me/my%20way", "dir_info": {"editable": True}}))
    with pytest.raises(PluginError) as error:
        discovery.transport("mine")
    assert str(error.value).endswith("mend the code in /home/me/my way, or disable it: ECHO_DISABLE_PLUGINS=echo-mine")


def test_a_plugin_that_lacks_what_it_requires_names_it(install: Install, site: Path) -> None:
    """A broken editable install too: its code is right, and its environment is not."""
    install("some-tool", "3", "tools", {})
    needed = ("some-tool>=3", "no-such-thing>=2", "some-tool<3", "odd; extra == 'more'", "older; python_version < '3'")
    install("echo-needy", "1", TRANSPORTS, {"needy": "fake_needy"}, needed, fake_needy="import no_such_thing")
    (metadata,) = [path for entry in sys.path for path in Path(entry).glob("echo_needy-1.dist-info")]
    (metadata / "direct_url.json").write_text(json.dumps({"url": "file:///home/me/needy", "dir_info": {"editable": True}}))
    with pytest.raises(PluginError) as error:
        discovery.transport("needy")
    wanted = "no-such-thing>=2, some-tool<3"
    said = f"echo-needy requires {wanted}, and this environment has no such version: install {wanted}, or disable it: ECHO_DISABLE_PLUGINS=echo-needy"
    assert str(error.value).endswith(said)


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


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('    scheme = "way"\n', "", 'Way has no scheme; add scheme = "NAME" to it'),
        ('    scheme = "way"\n', '    scheme = "wya"\n',
         "fake_way_impl:Way has the scheme 'wya', so clients would look for another transport; write scheme = 'way'"),
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
    if "lacks listen" not in said and "entry point" not in said and "wya" not in said:  # Python itself makes no object of a class that lacks a method
        with pytest.raises(PluginError, match=re.escape(said)):
            sys.modules["fake_way_impl"].Way()


def test_a_transport_that_forgets_its_base_class_says_what_to_write(install: Install) -> None:
    methods = "    def __init__(self, **options): ...\n    def listen(self, sink): return self.options.host\n"
    source = TRANSPORT_CLASS.replace("    def listen(self, sink): ...\n", methods)
    assert methods in source
    info = TRANSPORT.format(name="way", module="fake_way", api=1)
    install("echo-way", "0.1", TRANSPORTS, {"way": "fake_way"}, fake_way=info, fake_way_impl=source)
    way = discovery.transport_class("way")()
    with pytest.raises(PluginError, match=r"Way has no options, because its __init__ does not call .*; begin it with: super\(\).__init__\(\*\*options\)"):
        way.listen(None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="'Way' object has no attribute 'other'"):
        way.other  # type: ignore[attr-defined]  # noqa: B018


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

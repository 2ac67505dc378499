"""Plugins that were made for another echo-core: they are refused before any of their modules is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from plugin_sources import TRANSPORT

from echo_core import __version__
from echo_core.base.errors import PluginError, PluginVersionError
from echo_core.plugins.discovery import COMMANDS, OBSERVERS, RESOLVERS, SAMPLERS, TRANSPORTS, PluginHost

pytestmark = pytest.mark.every_python

Install = Callable[..., None]

STALE = "raise ImportError('echo_core.store.door.capi does not export expected C function claim')"


@pytest.mark.parametrize(
    "requires", ["echo-core<0.1", "Echo_Core >=99,<100", "echo-core[tcp]<0.0.5; python_version>'3'", "echo.core==0.0.1"], ids=lambda text: text.split(";")[0]
)
@pytest.mark.parametrize("group", [TRANSPORTS, SAMPLERS, COMMANDS, RESOLVERS])
def test_an_old_plugin_is_refused_before_its_modules_are_imported(install: Install, group: str, requires: str) -> None:
    install("echo-old", "0.0.9", group, {"old": "fake_old"}, requires=("numpy", requires), fake_old=STALE)
    look_up = {TRANSPORTS: "transport", SAMPLERS: "sampler", COMMANDS: "command", RESOLVERS: "resolver"}[group]
    with pytest.raises(
        PluginVersionError, match=rf"echo-old 0.0.9 was written for echo-core[<>=].*, and this is echo-core {__version__}; install versions of both"
    ):
        getattr(PluginHost(), look_up)("old")
    assert "fake_old" not in sys.modules
    (record,) = PluginHost().examine(group)
    assert record.error is not None and "was written for echo-core" in record.error


def test_an_old_observer_is_left_out_and_logged(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("echo-old", "0.0.9", OBSERVERS, {"old": "fake_old"}, requires=("echo-core<0.1",), fake_old=STALE)
    assert PluginHost().observers().get_plugins() == set()
    assert "echo-old 0.0.9 was written for echo-core<0.1" in caplog.text and "fake_old" not in sys.modules


@pytest.mark.parametrize(
    "requires", [(), ("echo-core",), (f"echo-core=={__version__}",), ("echo-core<0.1; extra == 'old'",), ("echo-core-tools<0.1",), ("echo-core<<odd",)]
)
def test_a_plugin_for_this_core_is_imported(install: Install, requires: tuple[str, ...]) -> None:
    source = TRANSPORT.format(name="new", module="fake_new", api=1)
    install("echo-new", "3", TRANSPORTS, {"new": "fake_new"}, requires=requires, fake_new=source)
    assert PluginHost().transport("new").name == "new"


def test_other_faults_of_an_import_stay_what_they_are(install: Install) -> None:
    install("echo-stale", "3", TRANSPORTS, {"stale": "fake_stale"}, requires=("echo-core",), fake_stale=STALE)
    with pytest.raises(PluginError, match="failed to import: ImportError: .*does not export expected C function"):
        PluginHost().transport("stale")

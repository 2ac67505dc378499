"""Plugins that observe: all of them are told, and one that raises stops nobody."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import pluggy
import pytest

from echo_core.base.errors import PluginError
from echo_core.plugins import discovery, hookspecs
from echo_core.plugins.discovery import OBSERVERS, PluginHost

pytestmark = pytest.mark.every_python

Install = Callable[..., None]


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


def test_an_observer_without_the_decorator_is_an_error() -> None:
    class Mine:
        def echo_peer_lost(self, peer: object, reason: str) -> None: ...

    with pytest.raises(PluginError, match=r"echo_peer_lost\(\) has no @hookimpl"):
        discovery.observers(Mine())

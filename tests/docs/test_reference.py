"""The reference has every public name, and its page of hooks says what hookspecs.py says."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from echo_core.plugins import hookspecs
from echo_core.plugins.loading import new_manager, register

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_hooks_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "hooks.py"), "--check"], check=False)
    assert done.returncode == 0, "run: python tools/hooks.py"


def test_every_hook_of_the_page_can_be_implemented_and_is_called() -> None:
    page = (ROOT / "docs" / "plugins" / "hooks.md").read_text()
    names = [name for name in vars(hookspecs) if name.startswith("echo_")]
    assert names and all(f"## `{name}`" in page for name in names)
    called = []

    class Observer:
        @hookspecs.hookimpl
        def echo_peer_lost(self, peer, reason):  # the arguments are those the page shows
            called.append((peer, reason))

        @hookspecs.hookimpl
        def echo_stats(self, stats):
            called.append(stats)

        @hookspecs.hookimpl
        def echo_peer_connected(self, peer):
            called.append(peer)

        @hookspecs.hookimpl
        def echo_configure(self, config):
            called.append(config)

    manager = new_manager()
    register(manager, Observer(), None, "a test")
    manager.hook.echo_peer_lost(peer=1, reason="gone")
    manager.hook.echo_stats(stats={"a": 1})
    manager.hook.echo_peer_connected(peer=2)
    manager.hook.echo_configure(config=3)
    assert called == [(1, "gone"), {"a": 1}, 2, 3]


@pytest.mark.parametrize("package", ["echo_core", "echo_ipc", "echo_es", "echo_cluster"])
def test_every_public_name_is_in_the_reference(package: str) -> None:
    pages = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    documented = re.findall(rf"^\.\. [\w:]+:: {package}\.(\w+)$", pages, re.M)
    names = {*import_module(package).__all__} - {"__version__"}
    assert not names - {*documented}, "add them to a page of docs/reference"
    assert [name for name in names if documented.count(name) > 1] == []

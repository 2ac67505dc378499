"""A process without file descriptors: the error says so, and nothing of it stays."""

from __future__ import annotations

import importlib
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from plugin_sources import TRANSPORT

from echo_core.base.errors import PluginError, PluginNotFound
from echo_core.plugins.discovery import TRANSPORTS, PluginHost

pytestmark = pytest.mark.every_python

Install = Callable[..., None]


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """While the block runs, this process can open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, hard))
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        for _ in range(left):
            os.close(taken.pop())
        yield
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("left", [0, 1, 2])
def test_it_is_never_said_that_a_plugin_is_not_installed(install: Install, left: int) -> None:
    install("echo-way", "3", TRANSPORTS, {"way": "fake_way"}, fake_way=TRANSPORT.format(name="way", module="fake_way", api=1))
    host, found = PluginHost(), []
    importlib.invalidate_caches()
    with descriptors(left):
        for look_up in (lambda: host.transport("way"), lambda: host.installed(TRANSPORTS), host.observers):
            try:
                look_up()
            except Exception as error:
                found.append(error)
    assert left or len(found) == 3
    assert all(isinstance(error, PluginError) and "no file descriptor is left" in str(error) and "ulimit -n" in str(error) for error in found), found
    assert host.transport("way").name == "way", "nothing that was found while there was none is kept"
    assert [record.error for record in host.installed(TRANSPORTS)] == [None]


def test_an_import_without_descriptors_is_no_broken_plugin(install: Install) -> None:
    source = "import os\nwhile True: os.dup(0)\n"
    install("echo-hungry", "3", TRANSPORTS, {"hungry": "fake_hungry"}, fake_hungry=source)
    with descriptors(8):
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(PluginError, match=r"transport 'hungry' \(echo-hungry 3\) cannot be imported: no file descriptor is left .*ulimit -n"):
            PluginHost().transport("hungry")
        for number in set(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])) - set(map(int, before)):
            with suppress(OSError):
                os.close(number)
    sys.modules.pop("fake_hungry", None)
    with pytest.raises(PluginNotFound, match="no transport named 'other'"):
        PluginHost().transport("other")

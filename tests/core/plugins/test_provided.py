"""What is installed is read once, and again when something was installed, removed or replaced."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from echo_core.plugins import provided as module
from echo_core.plugins.provided import provided

pytestmark = pytest.mark.every_python

GROUP = "echo.transports"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """One more for each time that the distributions are read."""
    times: list[float] = []

    def entry_points() -> Any:
        times.append(time.monotonic())
        return metadata.entry_points()

    monkeypatch.setattr(module, "entry_points", entry_points)
    monkeypatch.setattr(module, "_kept", None)
    return times


def settle(site: Path) -> None:
    """Let the folder and what is in it have changed long ago."""
    for path in (*site.iterdir(), site):
        past = path.stat().st_mtime - 1000
        os.utime(path, (past, past))


def names() -> list[tuple[str, str, str]]:
    return sorted((entry.name, name, version) for entry, name, version in provided(GROUP))


def test_it_is_read_once(install: Callable[..., None], site: Path, reads: list[float]) -> None:
    install("echo-way", "3", GROUP, {"way": "fake_way"})
    settle(site)
    assert [names() for _ in range(3)] == [[("way", "echo-way", "3")]] * 3
    assert provided("echo.samplers") == provided("another") == []
    assert len(reads) == 1


def test_what_is_installed_removed_and_replaced_is_noticed(install: Callable[..., None], site: Path, reads: list[float]) -> None:
    install("echo-way", "3", GROUP, {"way": "fake_way"})
    settle(site)
    assert names() == [("way", "echo-way", "3")]
    install("echo-path", "1", GROUP, {"path": "fake_path"})
    assert names() == [("path", "echo-path", "1"), ("way", "echo-way", "3")]
    shutil.rmtree(site / "echo_way-3.dist-info")
    assert names() == [("path", "echo-path", "1")]
    shutil.rmtree(site / "echo_path-1.dist-info")
    install("echo-path", "2", GROUP, {"path": "fake_path"})
    assert names() == [("path", "echo-path", "2")]


def test_files_of_other_kinds_may_come_and_go(install: Callable[..., None], site: Path, reads: list[float]) -> None:
    """A job may write its results into the folder of its script, which is in the path."""
    install("echo-way", "3", GROUP, {"way": "fake_way"})
    settle(site)
    for number in range(3):
        (site / f"result-{number}").touch()
        assert names() == [("way", "echo-way", "3")]
    assert len(reads) == 1


def test_a_distribution_that_has_just_changed_is_read_again(install: Callable[..., None], site: Path, reads: list[float]) -> None:
    """An installer makes the folder of a distribution before its files."""
    install("echo-way", "3", GROUP, {"way": "fake_way"})
    late = (site / "echo_way-3.dist-info" / "entry_points.txt").rename(site.parent / "later")
    assert names() == []
    late.rename(site / "echo_way-3.dist-info" / "entry_points.txt")
    assert names() == [("way", "echo-way", "3")]


def test_another_path_is_noticed(install: Callable[..., None], site: Path, reads: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    install("echo-way", "3", GROUP, {"way": "fake_way"})
    settle(site)
    assert names() == [("way", "echo-way", "3")]
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
    assert names() == []
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    assert names() == [("way", "echo-way", "3")]


def test_an_archive_may_be_in_the_path(site: Path, reads: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    archive = site.parent / "packages.zip"
    for version in ("1", "2"):
        with zipfile.ZipFile(archive, "w") as written:
            written.writestr("echo_way.dist-info/METADATA", f"Metadata-Version: 2.1\nName: echo-way\nVersion: {version}\n")
            written.writestr("echo_way.dist-info/entry_points.txt", f"[{GROUP}]\nway = fake_way\n")
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "path", [str(archive), f"{archive}/inside", str(site / "missing"), *sys.path])
        assert names() == [("way", "echo-way", version)]


def test_a_finder_of_another_kind_is_always_asked(site: Path, reads: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody tells when its distributions change."""

    class Finder:
        @staticmethod
        def find_spec(*_: Any) -> None:
            return None

        @staticmethod
        def find_distributions(*_: Any) -> list[Any]:
            return []

    settle(site)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    names(), names()
    assert len(reads) == 2

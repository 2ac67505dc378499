"""An environment of one's own: which plugins are installed is up to the test."""

from __future__ import annotations

import importlib
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import packaging.requirements  # noqa: F401  (imported now, because `site` hides site-packages)
import pytest

with suppress(ImportError):  # the same
    import echo_replay.config.section  # noqa: F401

Install = Callable[..., None]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An environment in which only what a test puts into the path is installed."""
    standard = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    standard.append(str(Path(standard[1], "lib-dynload")))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *standard])
    monkeypatch.delenv("ECHO_DISABLE_PLUGINS", raising=False)
    before = set(sys.modules)
    importlib.invalidate_caches()
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("fake_"):
            del sys.modules[name]


@pytest.fixture
def install(site: Path) -> Install:
    """`install("echo-x", "0.1", group, {"name": "module"}, module="source")`; `requires` are its requirements."""

    def install(dist: str, version: str, group: str, names: dict[str, str], requires: tuple[str, ...] = (), **sources: str) -> None:
        info = site / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needs = "".join(f"Requires-Dist: {text}\n" for text in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n{needs}")
        lines = [f"{name} = {module}" for name, module in names.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
        for module, source in sources.items():
            (site / f"{module}.py").write_text(source)
        importlib.invalidate_caches()

    return install

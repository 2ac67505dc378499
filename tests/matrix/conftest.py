"""The transport that docs/plugins/transport.md teaches to write, put together as written and installed for the session."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echo_core.plugins import discovery

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins" / "transport.md"
FILE = re.compile(r"^```(?:python|toml) title=(\S+)\n(.*?)^```$", re.M | re.S)


@pytest.fixture(scope="session")
def documented_transport(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`uds` can be chosen like any installed transport, also by the processes of a test."""
    site = tmp_path_factory.mktemp("site")
    files = dict(FILE.findall(PAGE.read_text()))
    for name, text in files.items():
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    sys.path.append(str(site))  # spawned processes are given the same path
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(site))
    importlib.invalidate_caches()


@pytest.fixture
def transport_table(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The configuration of a transport at a free address of this machine."""
    known = {field.name for field in dataclasses.fields(discovery.transport_class(request.param).Options)}
    place = {"host": "127.0.0.1", "port": 0, "path": str(tmp_path / "socket")}
    return {"type": request.param, **{name: value for name, value in place.items() if name in known}}

"""docs/plugins/sampler.md: its package is put together as written, installed, chosen by name, and keeps the whole contract."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins" / "sampler.md"
FILE = re.compile(r"^```(?:python|toml) title=(\S+)\n(.*?)^```$", re.M | re.S)

pytestmark = pytest.mark.needs("echo-core")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The files of the page, as pip would install them."""
    files = dict(FILE.findall(PAGE.read_text()))
    assert set(files) == {"pyproject.toml", "echo_recent/__init__.py", "echo_recent/recent.py", "test_recent.py"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    info = tmp_path / "echo_recent-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    return tmp_path


def run(package: Path, *arguments: str) -> str:
    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=package,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_as_short_as_it_says() -> None:
    body = dict(FILE.findall(PAGE.read_text()))["echo_recent/recent.py"].split("class Recent")[1]
    assert sum(bool(line.strip()) for line in body.splitlines()) <= 40


def test_it_keeps_the_whole_contract(package: Path) -> None:
    output = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_recent.py")
    passed = re.search(r"(\d+) passed", output)
    assert passed and int(passed[1]) > 35, output


def test_it_is_chosen_by_its_name(package: Path) -> None:
    program = """
from echo_core.plugins import discovery
cls = discovery.sampler_class("recent")
print(cls.__module__, cls(capacity=5).options)
"""
    assert run(package, "-c", program) == "echo_recent.recent Recent.Options(capacity=5, decay=0.99)\n"

"""tools/install.py and tools/demo.py: what is built and installed, when, and what is said meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.skipif(shutil.which("uv") is None, reason="packages are installed with uv"), pytest.mark.timeout(300)]

PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1"
{more}

[tool.setuptools.packages.find]
where = ["src"]
"""


class Small:
    """A small repository with a core and a plugin, and an environment."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.python = folder / "environment" / "bin" / "python"
        shutil.copytree(ROOT / "tools", self.root / "tools", ignore=shutil.ignore_patterns("__pycache__", "rdma_vm"))
        self.add("echo_core", 'optional-dependencies = { tcp = ["echo-tcp"], none = [] }')
        self.add("plugins/echo_tcp", 'dependencies = ["echo-core"]')
        subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, str(self.python.parents[1])], check=True)

    def add(self, place: str, more: str) -> None:
        package = Path(place).name
        source = self.root / place / "src" / package
        source.mkdir(parents=True)
        (source / "__init__.py").write_text("number = 1\n")
        (self.root / place / "pyproject.toml").write_text(PROJECT.format(name=package.replace("_", "-"), more=more))

    def install(self, *wanted: str) -> str:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([str(self.python), "tools/install.py", *wanted], cwd=self.root, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr

    def number(self, package: str) -> str:
        command = [str(self.python), "-I", "-c", f"import {package}; print({package}.number)"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(tmp_path_factory.mktemp("small"))


def test_only_what_changed_is_built_and_installed(small: Small) -> None:
    said = small.install("echo-core[tcp]")
    assert "building echo_core" in said and "building plugins/echo_tcp" in said and "installing echo-core, echo-tcp into " in said
    assert small.number("echo_tcp") == "1"
    assert small.install("echo-core[tcp]") == "", "nothing changed"
    (small.root / "echo_core" / "src" / "echo_core" / "__init__.py").write_text("number = 2\n")
    # A plugin of the older build may not fit the new core, so it is renewed with it.
    assert "installing echo-core, echo-tcp into " in small.install("echo-core[none]")
    assert (small.number("echo_core"), small.number("echo_tcp")) == ("2", "1")


def test_what_was_taken_away_is_installed_again(small: Small) -> None:
    small.install("echo-core[tcp]")
    subprocess.run(["uv", "pip", "uninstall", "--quiet", "--python", str(small.python), "echo-tcp"], check=True)
    assert "installing echo-tcp into " in small.install("echo-core[tcp]") and small.number("echo_tcp") == "1"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], "echo-core[tcp]"),
        (["--transport", "shm", "--workers", "2"], "echo-core[shm]"),
        (["--transport=grpcs://127.0.0.1:5555"], "echo-core[grpc]"),
        (["--transport", "ucx"], "echo-core[rdma]"),
        (["--transport", "pigeon"], "echo-core[tcp]"),
        (["--config", "shared.toml"], "echo-core[shm]"),
        (["--config", "list.toml"], "echo-core[grpc,rdma]"),
        (["--config", "list.toml", "--transport", "tcp"], "echo-core[tcp]"),
    ],
)
def test_the_demo_needs_the_transport_that_was_chosen(tmp_path: Path, arguments: list[str], wanted: str) -> None:
    (tmp_path / "shared.toml").write_text('[shared]\naddress = "shm://demo"\n[server.transport]\nmax_connections = 9\n')
    (tmp_path / "list.toml").write_text('[server]\ntransport = ["rdma://127.0.0.1:1", { type = "grpc", port = 0 }]\n')
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "demo.py"), *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == wanted + "\n"

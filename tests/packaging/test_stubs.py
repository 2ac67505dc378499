"""Types: the stubs of the compiled modules say what the modules are, and the packages and examples pass mypy's strict checks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.needs("echo-tcp", "echo-shm", "echo-samplers", "mypy"),
    pytest.mark.timeout(600),  # mypy reads numpy's stubs first
]


def test_every_compiled_module_has_a_stub_that_is_true() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "stubs.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_packages_and_examples_are_typed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_mistake_in_the_use_of_a_compiled_module_is_seen(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text("from echo_core import Server\nServer(0, 1).sample(table=3)\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'Argument "table" to "sample" of "Store" has incompatible type "int"' in done.stdout, done.stdout


def test_what_echo_core_exports_is_typed() -> None:
    """The names it finds when they are used are imported for type checkers as well: to them everything else is Any."""
    import echo_core

    tree = ast.parse(Path(echo_core.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == echo_core._HOME | {name: f"echo_replay.{module}" for name, module in echo_core._REPLAY.items()}

"""The type stubs of the compiled modules say what the modules are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "echo_core" / "src" / "echo_core"


def test_every_compiled_module_has_a_stub() -> None:
    assert {path.stem for path in CORE.glob("*.pyx")} == {path.stem for path in CORE.glob("*.pyi")}


@pytest.mark.timeout(600)  # mypy reads numpy's stubs first
def test_the_stubs_are_true(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    modules = [f"echo_core.{path.stem}" for path in sorted(CORE.glob("*.pyi"))]
    allowed = str(Path(__file__).with_name("stubtest.txt"))
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", "--allowlist", allowed, "--ignore-unused-allowlist", *modules]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

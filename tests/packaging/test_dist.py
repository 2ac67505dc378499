"""`./dev wheels` fills dist/ once for each Python, and keeps it whatever the checks find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WHEELS = """
import pathlib, sys
out = pathlib.Path("build/wheels/one")
out.mkdir(parents=True, exist_ok=True)
(out / "echo_core-0.1-py3-none-any.whl").write_text("")
if "--sdist" in sys.argv:
    (out / "echo_core-0.1.tar.gz").write_text("")
print(out.resolve())
sys.exit({code})
"""
CHECK = """
import pathlib, sys
print(pathlib.Path(__file__).name, *sys.argv[2:], sorted(path.name for path in pathlib.Path(sys.argv[1]).iterdir()))
sys.exit({code})
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small repository whose tools say how they are called."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "dist.py").write_text((ROOT / "tools" / "dist.py").read_text())
    (tools / "wheels.py").write_text(WHEELS.format(code=0))
    for name in ("contents.py", "tryout.py"):
        (tools / name).write_text(CHECK.format(code=0))
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "echo_core-0.0.tar.gz").write_text("of an older version")
    return tmp_path


def run(repository: Path, *pythons: str) -> tuple[int, str]:
    command = [sys.executable, "-u", "tools/dist.py", *(pythons or (sys.executable,))]
    done = subprocess.run(command, cwd=repository, env={**os.environ, "PYTHONUNBUFFERED": "1"}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def found(repository: Path) -> list[str]:
    return sorted(path.name for path in (repository / "dist").iterdir())


BOTH = ["echo_core-0.1-py3-none-any.whl", "echo_core-0.1.tar.gz"]


def test_all_is_built_checked_and_tried_out(repository: Path) -> None:
    code, said = run(repository)
    assert code == 0 and found(repository) == BOTH, said
    assert f"contents.py {BOTH}" in said and f"tryout.py --sdist {BOTH}" in said and "2 wheels and source distributions" in said


@pytest.mark.parametrize("tool", ["contents.py", "tryout.py"])
def test_what_was_built_stays_if_a_check_fails(repository: Path, tool: str) -> None:
    (repository / "tools" / tool).write_text(CHECK.format(code=1))
    code, said = run(repository)
    assert code == 1 and found(repository) == BOTH, said
    assert f"{sys.executable}: tools/{tool} found something wrong" in said and "tryout.py --sdist" in said, "the other check is made too"


def test_what_one_python_cannot_build_leaves_what_the_others_have(repository: Path, tmp_path: Path) -> None:
    broken = tmp_path / "python3.99"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    code, said = run(repository, sys.executable, str(broken))
    assert code == 1 and found(repository) == BOTH, said
    assert f"{broken}: the wheels could not be built" in said

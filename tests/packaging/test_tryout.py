"""Every way to install Echo from a folder of wheels works: installed into an empty environment, everything that came along can be used."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRYOUT = ROOT / "tools" / "tryout.py"
EXTRAS = tomllib.loads((ROOT / "echo_core" / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OWN = [name for name, brings in EXTRAS.items() if name != "all" and any(one.startswith("echo") for one in brings)]

pytestmark = [pytest.mark.skipif(shutil.which("uv") is None, reason="wheels are built and installed with uv"), pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def wheels() -> Path:
    """The folder of our wheels, which the matrix has built for this Python."""
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "wheels.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.split("\n")[-2])


def tried(wheels: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TRYOUT), str(wheels), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("way", ["core", *OWN, "adapters"])
def test_a_way_to_install_works(wheels: Path, way: str) -> None:
    done = tried(wheels, "--way", way)
    assert done.returncode == 0 and done.stdout.count("\n") == 1 and f", {way}: " in done.stdout, done.stdout + done.stderr


@pytest.mark.every_python
def test_everything_together_works(wheels: Path) -> None:
    done = tried(wheels, "--way", "all")
    assert done.returncode == 0 and "echoctl runs" in done.stdout, done.stdout + done.stderr


def test_an_unknown_way_is_named_with_those_that_there_are(wheels: Path) -> None:
    done = tried(wheels, "--way", "pigeon")
    assert done.returncode == 2 and "no way 'pigeon'" in done.stderr and all(name in done.stderr for name in ("core", *OWN, "adapters", "es-evosax", "pages"))


def test_what_does_not_work_is_shown(wheels: Path, tmp_path: Path) -> None:
    """Without the wheel of core nothing of ours can be installed, whatever the index has under its name."""
    for wheel in wheels.glob("*.whl"):
        if not wheel.name.startswith("echo_core-"):
            shutil.copy(wheel, tmp_path)
    done = tried(tmp_path, "--way", "tcp")
    assert done.returncode == 1 and done.stdout.startswith("FAILED ") and "echo-core" in done.stdout

"""tools/contents.py finds what does not belong into a distribution."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.every_python

TOOL = Path(__file__).resolve().parents[2] / "tools" / "contents.py"
GOOD = ["echo_x/__init__.py", "echo_x/py.typed", "echo_x-0.1.dist-info/METADATA", "echo_x-0.1.dist-info/licenses/LICENSE"]


def check(folder: Path, files: list[str], name: str = "echo_x-0.1-py3-none-any.whl") -> tuple[int, str]:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for file in files:
            archive.writestr(file, "")
    done = subprocess.run([sys.executable, str(TOOL), str(folder)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_good_wheel_passes(tmp_path: Path) -> None:
    assert check(tmp_path, GOOD) == (0, "1 distributions, nothing wrong\n")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["tests/test_x.py"], "top-level 'tests'"),
        (["echo_x/fast.pyx"], "source of a compiled module"),
        (["echo_x/fast.so"], "says that it runs anywhere"),
        (["echo_x/tests/test_x.py"], "belongs only to the repository"),
    ],
)
def test_what_does_not_belong_is_named(tmp_path: Path, more: list[str], said: str) -> None:
    code, text = check(tmp_path, GOOD + more)
    assert code == 1 and said in text


@pytest.mark.parametrize(("missing", "said"), [("py.typed", "no py.typed"), ("LICENSE", "no licence")])
def test_what_is_missing_is_named(tmp_path: Path, missing: str, said: str) -> None:
    code, text = check(tmp_path, [file for file in GOOD if not file.endswith(missing)])
    assert code == 1 and said in text


def test_an_empty_folder_is_no_release(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(TOOL), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "./dev wheels" in done.stdout

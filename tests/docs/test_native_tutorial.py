"""docs/plugins/native.md: its module is compiled as written, and fills a learner's batches from a file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins" / "native.md"
FILE = re.compile(r"^```\w+ title=(\S+)\n(.*?)^```$", re.M | re.S)

pytestmark = [
    pytest.mark.needs("echo-core", "echo-samplers", "cython", "setuptools"),
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++").split()[-1]) is None, reason="no C++ compiler (set CXX)"),
    pytest.mark.timeout(400),
]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, compiled."""
    place = tmp_path_factory.mktemp("native")
    files = dict(FILE.findall(PAGE.read_text()))
    assert set(files) == {"setup.py", "from_file.pyx", "use.py"}
    for name, text in files.items():
        (place / name).write_text(text)
    built = run(place, "setup.py", "--quiet", "build_ext", "--inplace")
    assert built.returncode == 0, built.stdout + built.stderr
    return place


def test_it_fills_the_learners_batches(folder: Path) -> None:
    done = run(folder, "use.py")
    assert done.returncode == 0 and done.stdout == "100 samples\n", done.stdout + done.stderr


def test_a_file_that_is_not_there_and_no_store_are_errors(folder: Path) -> None:
    program = """
import numpy as np
from echo_core import Server
from echo_core.server.sink import ServerSink
import from_file
server = Server(np.zeros(1), 2)
for store, path in ((ServerSink(server).native, "nowhere.bin"), (object(), "nowhere.bin")):
    try:
        from_file.load(store, path)
    except (OSError, TypeError, ValueError) as error:
        print(type(error).__name__)
server.close()
open("one.bin", "wb").write(bytes(8))
print(from_file.load(ServerSink(server).native, "one.bin"))
"""
    done = run(folder, "-c", program)
    assert done.returncode == 0, done.stderr
    first, second, closed = done.stdout.splitlines()
    assert first == "FileNotFoundError" and second in ("TypeError", "ValueError") and closed == "0", done.stdout

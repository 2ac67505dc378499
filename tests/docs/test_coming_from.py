"""The pages about other libraries: the programs of the pages have the lines of Echo in the tables, and the libraries' own programs run."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROGRAMS = re.compile(r"^```python.*?\n(.*?)^```$", re.M | re.S)
RIVAL = re.compile(r"^```python rival=(\w+)\n(.*?)^```$", re.M | re.S)
RIVALS = dict(RIVAL.findall((DOCS / "coming-from.md").read_text()))
((_, UNILAB),) = RIVAL.findall((DOCS / "ipc.md").read_text())
#: Words and outlines, which are no lines of code.
OUTLINES = {"Server(...).restore(folder)", "server.publish(...)", 'transport="tcp://..."', "torch.from_numpy(leaf)"}


def test_every_line_of_the_tables_is_run() -> None:
    page = (DOCS / "coming-from.md").read_text()
    programs = "\n".join(PROGRAMS.findall(page + (DOCS / "adapters.md").read_text()))
    rows = [line.strip("| ").split(" | ") for line in page.split("\n") if line.startswith("| `") or line.startswith("| a")]
    lines = [line for row in rows if len(row) == 2 for line in re.findall(r"`([^`]+)`", row[1]) if "(" in line or "=" in line]
    assert len(lines) > 30
    # A table shows the plainest call; the program may add arguments at its end.
    unknown = [line for line in lines if line not in OUTLINES and line.rstrip(")") not in programs]
    assert not unknown, "not in a program of the page:\n" + "\n".join(unknown)


def test_each_section_has_the_other_librarys_program() -> None:
    sections = re.findall(r"^## ", (DOCS / "coming-from.md").read_text(), re.M)
    assert len(RIVALS) == len(sections) and set(RIVALS) == {"reverb", "torchrl", "stable_baselines3", "transfer_queue", "echo"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("library", [*RIVALS, "uni_rl"])
def test_the_other_librarys_program_runs(library: str, tmp_path: Path) -> None:
    """In the environment that ./dev rivals has made for it, or in this one, if the library is here."""
    run(interpreter(library), {**RIVALS, "uni_rl": UNILAB}[library], tmp_path)


@pytest.mark.needs("echo-ipc", "torch")
def test_the_program_of_unilab_runs_with_another_import(tmp_path: Path) -> None:
    changed = UNILAB.replace("from uni_rl.ipc import", "from echo_ipc import")
    assert changed != UNILAB
    run(sys.executable, changed, tmp_path)


def interpreter(library: str) -> str:
    """The one that has a library. Skips the test if none has it."""
    python = os.environ.get(f"RIVAL_{library.upper()}_PYTHON")
    if python is None and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    return python or sys.executable


def run(python: str, source: str, folder: Path) -> None:
    program = folder / "page.py"
    program.write_text(source)
    # Ray's sockets lie in the temporary folder, and the paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="rival-", ignore_cleanup_errors=True) as temporary:
        env = {**os.environ, "TMPDIR": temporary}
        done = subprocess.run([python, str(program)], cwd=folder, env=env, capture_output=True, text=True, timeout=560, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

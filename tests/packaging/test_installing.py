"""What Echo says about installing itself is in one module, and for readers on two pages: those change on the day of the first release."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from echo_core.base import installing
from echo_core.base.installing import how_to_install, how_to_mend, how_to_replace

ROOT = Path(__file__).resolve().parents[2]
#: Commands that install one of Echo's distributions from an index or a folder of wheels. Folders of a checkout are no such thing.
COMMAND = re.compile(r"pip install [^`\n#]*(?<![./\w-])echo(?:-(?:core|samplers|tcp|shm|grpc|rdma|adapters)|ctl)\b")
# docs/troubles.md shows an error text, which its own test compares with the real one.
PLACES = {"README.md", "docs/install.md", "docs/troubles.md", "echo_core/src/echo_core/base/installing.py"}


def test_commands_that_install_echo_stand_in_one_place() -> None:
    listed = subprocess.run(["git", "ls-files", "*.md", "*.py", "*.toml"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no checkout")
    texts = {name: (ROOT / name).read_text() for name in listed.stdout.split() if name != "CHANGELOG.md" and "tests/" not in name and (ROOT / name).exists()}
    found = {name for name, text in texts.items() if COMMAND.search(text) or "force-reinstall" in text}
    assert found <= PLACES, "these should say how_to_install(...), or link to docs/install.md"


def test_the_two_pages_name_the_ways_of_the_messages() -> None:
    for page in ("README.md", "docs/install.md"):
        text = (ROOT / page).read_text()
        assert ('tools/install.py "echo-core[tcp]"' in text) is not installing.PUBLISHED, page
        assert ('pip install --find-links dist "echo-core[tcp]"' in text) is not installing.PUBLISHED, page


def test_the_day_of_release_changes_one_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    assert how_to_install("echo-core[tcp]") == (
        'in a checkout of Echo run: python tools/install.py "echo-core[tcp]", or with a folder of its wheels: pip install --find-links FOLDER "echo-core[tcp]"'
    )
    monkeypatch.setattr(installing, "PUBLISHED", True)
    assert how_to_install("echo-core[tcp]") == 'run: pip install "echo-core[tcp]"'


def test_a_name_of_somebody_else_never_becomes_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "editable_folder", lambda name: None)  # whichever way Echo is installed here
    for said in (how_to_replace("echo-tpc"), how_to_mend("echo-tpc"), how_to_replace("echo-tpc", "echo-tpc>=2")):
        assert "pip" not in said and "echo-tpc" in said
    assert how_to_install("echo-tcp") in how_to_mend("Echo_TCP")

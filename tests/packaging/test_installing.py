"""What Echo says about installing itself is in one module, and for readers on two pages: those change on the day of the first release."""

from __future__ import annotations

import itertools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from echo_core.base import installing
from echo_core.base.installing import how_to_install, how_to_mend, how_to_replace

ROOT = Path(__file__).resolve().parents[2]
#: Commands that install one of Echo's distributions from an index or a folder of wheels. Folders of a checkout are no such thing.
COMMAND = re.compile(r"pip install [^`\n#]*(?<![./\w-])echo(?:-(?:core|net|replay|testing|samplers|tcp|shm|grpc|rdma|ipc|es|rl|adapters)|ctl)\b")
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
        commands = 'pip install numpy optree packaging pluggy', 'pip install --no-index --find-links dist "echo-core[tcp]"'
        assert all((command in text) is not installing.PUBLISHED for command in commands), page


def test_no_command_takes_echo_from_the_index_before_it_is_there() -> None:
    """Echo's names are not reserved on the index, so a stranger could take them, and pip prefers the higher version to the one in the folder."""
    for name in PLACES - {"echo_core/src/echo_core/base/installing.py"}:
        for command in COMMAND.findall((ROOT / name).read_text()):
            assert installing.PUBLISHED or "--no-index" in command or command == "pip install echo-core", f"{name}: {command}"
    assert installing.PUBLISHED or "--no-index" in how_to_install("echo-core")


def test_the_page_names_the_dependencies_of_each_name() -> None:
    """For a folder of wheels they are installed before, by name."""
    files = [tomllib.loads(file.read_text())["project"] for place in ("*", "plugins/*", "systems/*") for file in ROOT.glob(f"{place}/pyproject.toml")]
    ours = {project["name"]: project for project in files}

    def needed(requirement: str) -> set[str]:
        name, _, extras = re.match(r"([\w.-]+)(\[([\w,-]+)\])?", requirement).groups(default="")  # type: ignore[union-attr]
        if name not in ours:
            return {name}
        chosen = [ours[name]["optional-dependencies"][extra] for extra in filter(None, extras.split(","))]
        wanted = [*ours[name].get("dependencies", []), *itertools.chain(*chosen)]
        return {name for requirement in wanted for name in needed(requirement)}

    rows = re.findall(r"^\| `(echo[^`]*)` \|.*\| (.*) \|$", (ROOT / "docs/install.md").read_text(), re.M)
    core = needed("echo-core")
    assert core == {"numpy", "optree", "packaging", "pluggy"}
    assert {name for name, _ in rows} >= {f"echo-core[{extra}]" for extra in ours["echo-core"]["optional-dependencies"]}
    for name, named in rows:
        assert set(re.findall(r"`([\w.-]+)`", named)) == (core if name == "echo-core" else needed(name) - core), name


def test_the_day_of_release_changes_one_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    assert how_to_install("echo-core[tcp]") == (
        'in a checkout of Echo run: python tools/install.py "echo-core[tcp]", or with a folder of its wheels, after its dependencies '
        '(docs/install.md): pip install --no-index --find-links FOLDER "echo-core[tcp]"'
    )
    monkeypatch.setattr(installing, "PUBLISHED", True)
    assert how_to_install("echo-core[tcp]") == 'run: pip install "echo-core[tcp]"'


def test_a_name_of_somebody_else_never_becomes_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "editable_folder", lambda name: None)  # whichever way Echo is installed here
    for said in (how_to_replace("echo-tpc"), how_to_mend("echo-tpc"), how_to_replace("echo-tpc", "echo-tpc>=2")):
        assert "pip" not in said and "echo-tpc" in said
    assert how_to_install("echo-tcp") in how_to_mend("Echo_TCP")

"""The release leaves no package out: every project is built, what is compiled says for which Pythons, and all of it can be asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTED = json.loads(subprocess.run([sys.executable, str(ROOT / "tools" / "wheels.py"), "--list"], capture_output=True, check=True).stdout)


def project(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def test_every_project_is_listed_once() -> None:
    found = {str(path.parent.relative_to(ROOT)) for place in ("*", "plugins/*", "systems/*") for path in ROOT.glob(f"{place}/pyproject.toml")}
    assert {*LISTED["compiled"], *LISTED["pure"]} == found and not {*LISTED["compiled"]} & {*LISTED["pure"]}
    assert LISTED["compiled"][0] == "echo_core", "the others compile against it"


@pytest.mark.parametrize("folder", LISTED["compiled"])
def test_what_is_compiled_is_built_for_every_python_it_names(folder: str) -> None:
    content = project(folder)
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(content["project"]["classifiers"]))
    built = re.findall(r"cp(3)(\d+)-\*", content["tool"]["cibuildwheel"]["build"])
    assert classifiers and [f"{major}.{minor}" for major, minor in built] == classifiers
    assert "import" in content["tool"]["cibuildwheel"]["test-command"]


def test_the_workflow_asks_the_tree() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "tools/wheels.py --list" in text
    assert text.count("fromJSON(needs.projects.outputs.") == 2, "compiled and pure"
    assert not re.search(r"plugins/echo_\w+", text), "a package named here is one that can be forgotten"


def test_the_extras_reach_every_plugin() -> None:
    extras = project("echo_core")["project"]["optional-dependencies"]
    names = {project(folder)["project"]["name"] for kind in LISTED.values() for folder in kind}
    wanted = {re.split(r"[\[<>=]", requirement)[0] for extra in extras.values() for requirement in extra}
    assert names - {"echo-core", "echo-adapters"} <= wanted


@pytest.mark.parametrize("folder", [folder for kind in LISTED.values() for folder in kind])
def test_every_project_says_who_made_it_and_where_it_is(folder: str) -> None:
    metadata = project(folder)["project"]
    assert metadata["authors"] == [{"name": "The Echo authors"}]
    assert {*metadata["urls"]} == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert all(url.startswith("https://github.com/echo-rl/echo") for url in metadata["urls"].values())
    assert metadata["urls"]["Source"].endswith(f"/{folder}")
    assert "Operating System :: POSIX :: Linux" in metadata["classifiers"]

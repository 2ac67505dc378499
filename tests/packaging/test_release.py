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


def test_the_workflow_builds_first_what_other_compiled_projects_require() -> None:
    """Nothing is on an index before it is published, so each must find what it requires among the wheels of the first job."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    first = re.findall(r"package-dir: (\w+),", text)
    assert f"compiled - {json.dumps(first)}" in text, "these are not built twice"
    there = {project(folder)["project"]["name"] for folder in first}
    for folder in LISTED["compiled"]:
        content = project(folder)
        required = {re.split(r"[\[<>=]", one)[0] for one in [*content["project"]["dependencies"], *content["build-system"]["requires"]]}
        assert {name for name in required if name.startswith("echo-")} <= there, folder


def test_the_extras_reach_every_plugin() -> None:
    extras = project("echo_core")["project"]["optional-dependencies"]
    names = {project(folder)["project"]["name"] for kind in LISTED.values() for folder in kind}
    wanted = {re.split(r"[\[<>=]", requirement)[0] for extra in extras.values() for requirement in extra}
    assert names - {"echo-core", "echo-adapters"} <= wanted


@pytest.mark.parametrize("folder", [folder for kind in LISTED.values() for folder in kind])
def test_all_have_one_version_and_those_that_need_this_very_core_name_it(folder: str) -> None:
    content, version = project(folder), project("echo_core")["project"]["version"]
    assert content["project"]["version"] == version
    needed = [*content["project"].get("dependencies", []), *content["build-system"]["requires"]]
    assert {name for name in needed if name.startswith("echo-") and "==" in name} <= {f"echo-core=={version}"}


@pytest.mark.parametrize("package", ["echo_core", "echo_net", "echo_replay"])
def test_the_version_in_the_code_is_that_of_the_distribution(package: str) -> None:
    text = (ROOT / package / "src" / package / "__init__.py").read_text()
    assert f'\n__version__ = "{project(package)["project"]["version"]}"\n' in text


def test_the_kit_needs_the_core_it_came_with() -> None:
    """It looks into the core's private parts, which change without notice."""
    assert any(name.startswith("echo-core==") for name in project("echo_testing")["project"]["dependencies"])


@pytest.mark.parametrize("folder", [folder for kind in LISTED.values() for folder in kind])
def test_every_project_says_who_made_it_and_where_it_is(folder: str) -> None:
    metadata = project(folder)["project"]
    assert metadata["authors"] == [{"name": "The Echo authors"}]
    assert {*metadata["urls"]} == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert all(url.startswith("https://github.com/echo-rl/echo") for url in metadata["urls"].values())
    assert metadata["urls"]["Source"].endswith(f"/{folder}")
    assert "Operating System :: POSIX :: Linux" in metadata["classifiers"]

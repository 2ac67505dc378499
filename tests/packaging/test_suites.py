"""The tools behind `./dev test`: which tests an environment takes, and that a test which no environment runs is named."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def suites() -> ModuleType:
    spec = importlib.util.spec_from_file_location("suites", ROOT / "tools" / "suites.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def record(outcomes: dict[str, str], elsewhere: list[str] | None = None, place: str = "tests/conftest.py") -> dict[str, Any]:
    reasons = {test: [place, "no tool"] for test, outcome in outcomes.items() if outcome == "skipped"}
    return {"outcomes": outcomes, "reasons": reasons, "elsewhere": elsewhere or []}


def test_what_one_environment_skips_another_may_run(suites: ModuleType) -> None:
    records = [record({"t.py::a[1::2]": "skipped"}, ["t.py::b"]), record({"t.py::a[1::2]": "failed", "t.py::b": "passed"})]
    assert not list(suites.never_run(records, []))


def test_what_nobody_runs_is_named_with_its_reason(suites: ModuleType) -> None:
    records = [record({"t.py::a": "skipped", "t.py::b": "passed"}), record({"t.py::a": "skipped"}, ["t.py::c"])]
    assert list(suites.never_run(records, [])) == [("t.py::a", "no tool"), ("t.py::c", "no environment has the distributions that it needs")]
    allowed = {"id": "t.py::a", "because": "tool"}
    assert list(suites.never_run(records, [allowed])) == [("t.py::c", "no environment has the distributions that it needs")]
    assert len(list(suites.never_run(records, [{**allowed, "because": "other"}]))) == 2


def test_a_module_that_is_skipped_as_a_whole_must_run_elsewhere(suites: ModuleType) -> None:
    assert [test for test, _ in suites.never_run([record({"t.py": "skipped"})], [])] == ["t.py"]
    assert not list(suites.never_run([record({"t.py": "skipped"}), record({"t.py::a": "passed"})], []))


def test_a_clause_of_the_kit_must_run_for_one_plugin(suites: ModuleType) -> None:
    kit = "x/site-packages/echo_core/testing/sampler.py"
    skipped = record({"t.py::TestOne::clause[a]": "skipped"}, place=kit)
    assert not list(suites.never_run([skipped, record({"u.py::TestOther::clause[b]": "passed"})], []))
    assert [test for test, _ in suites.never_run([skipped, record({"u.py::TestOther::clause_b": "passed"})], [])] == ["t.py::TestOne::clause[a]"]


def test_every_allowance_has_a_reason_and_a_file(suites: ModuleType) -> None:
    entries = tomllib.loads((ROOT / "tests" / "may_skip.toml").read_text())["test"]
    for entry in entries:
        assert (ROOT / entry["id"].partition("::")[0]).exists(), entry
        assert entry["reason"].endswith("."), entry


def test_an_environment_without_outcomes_is_an_error(suites: ModuleType) -> None:
    assert suites.told(suites.Outcome("x", 1.0, 1).counts) == "1 error"
    passed = suites.Outcome("x", 1.0, 0, record=record({"a": "passed", "b": "skipped", "c": "passed"}))
    assert suites.told(passed.counts) == "2 passed, 1 skipped"


CHOICE = """
import pytest
@pytest.mark.needs("echo-core")
def test_core(): pass
@pytest.mark.needs("echo-x")
@pytest.mark.parametrize("n", ["a::b"])
def test_x(n): pass
@pytest.mark.needs("echo-x", "echo-y")
def test_both(): pytest.skip("no tool")
@pytest.fixture
def broken():
    yield
    assert 0
def test_fails(broken): pass
@pytest.mark.xfail
def test_known(): assert 0
"""


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    """pytest with the recorder, in a copy of this repository's shape."""
    (folder / "tools").mkdir()
    (folder / "tools" / "record.py").write_text((ROOT / "tools" / "record.py").read_text())
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text(CHOICE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = needs\n")
    command = [sys.executable, "-m", "pytest", "-p", "tools.record", "--outcomes", "out.json", *arguments]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTEST_ADDOPTS": ""}, capture_output=True, text=True, check=False)
    assert (folder / "out.json").exists(), done.stdout + done.stderr
    content: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return content


def names(tests: list[str]) -> set[str]:
    return {test.partition("::")[2] for test in tests}


def test_the_recorder_keeps_the_worst_of_each_test(tmp_path: Path) -> None:
    content = run(tmp_path)
    assert {test.partition("::")[2]: outcome for test, outcome in content["outcomes"].items()} == {
        "test_core": "passed",
        "test_x[a::b]": "passed",
        "test_both": "skipped",
        "test_fails": "error",
        "test_known": "xfailed",
    }
    ((place, reason),) = content["reasons"].values()
    assert place.endswith("test_it.py") and reason == "no tool"


@pytest.mark.parametrize(
    ("wanted", "taken"), [("none", {"test_core", "test_fails", "test_known"}), ("echo-x", {"test_x[a::b]", "test_both"}), ("echo-y", {"test_both"})]
)
def test_an_environment_takes_the_tests_that_need_it(tmp_path: Path, wanted: str, taken: set[str]) -> None:
    content = run(tmp_path, "--needing", wanted)
    assert names(list(content["outcomes"])) == taken
    assert names(content["elsewhere"]) == {"test_core", "test_x[a::b]", "test_both", "test_fails", "test_known"} - taken


@pytest.mark.parametrize("setup", sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*/setup.py"), *ROOT.glob("*/*/setup.py")]))
def test_setup_says_that_echo_runs_on_linux_only(setup: str, tmp_path: Path) -> None:
    """Before it imports what is not there either."""
    program = f"import runpy, sys; sys.platform = 'darwin'; runpy.run_path({str(ROOT / setup)!r})"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and re.fullmatch(r"Echo runs on Linux only.*darwin\.\n", done.stderr), done.stderr

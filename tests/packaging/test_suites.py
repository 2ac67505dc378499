"""The tools behind `./dev test`: which tests an environment takes, and that a test which no environment runs is named."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
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
    kit = "x/site-packages/echo_testing/sampler.py"
    skipped = record({"t.py::TestOne::clause[a]": "skipped"}, place=kit)
    assert not list(suites.never_run([skipped, record({"u.py::TestOther::clause[b]": "passed"}, ["t.py::TestOne::clause[a]"])], []))
    assert [test for test, _ in suites.never_run([skipped, record({"u.py::TestOther::clause_b": "passed"})], [])] == ["t.py::TestOne::clause[a]"]


def test_every_allowance_has_a_reason_and_a_file(suites: ModuleType) -> None:
    entries = tomllib.loads((ROOT / "tests" / "may_skip.toml").read_text())["test"]
    for entry in entries:
        assert (ROOT / entry["id"].partition("::")[0]).exists(), entry
        assert entry["reason"].endswith("."), entry


def test_every_native_stress_program_is_run_by_a_test() -> None:
    """One that only `./dev tsan` builds may have stopped compiling long ago."""
    programs = sorted(path for place in ("", "*/", "*/*/") for path in ROOT.glob(f"{place}tests/native/*_stress.cpp") if ".tox" not in path.parts)
    assert len(programs) > 10
    for path in programs:
        folders = (path.parent, path.parent.parent)
        text = "".join(test.read_text() for folder in folders for test in folder.glob("test_*.py"))
        short = path.stem.removesuffix("_stress").removeprefix("ipc_")
        assert path.name in text or ("_stress.cpp" in text and f'"{short}"' in text), path.relative_to(ROOT)


def test_an_environment_without_outcomes_is_an_error(suites: ModuleType) -> None:
    assert suites.told(suites.Outcome("x", 1.0, 1).counts) == "1 error"
    passed = suites.Outcome("x", 1.0, 0, record=record({"a": "passed", "b": "skipped", "c": "passed"}))
    assert suites.told(passed.counts) == "2 passed, 1 skipped"


CHOICE = """
import pytest
@pytest.mark.needs("echo-core")
def test_core(): pass
@pytest.mark.needs("numpy")
@pytest.mark.parametrize("n", ["a::b"])
def test_x(n): pass
@pytest.mark.needs("numpy", "pytest")
def test_both(): pytest.skip("no tool")
@pytest.mark.needs("numpy", "echo-nowhere")
def test_nowhere(): pass
@pytest.mark.skipif(True, reason="no card")
def test_marked(): pass
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


@pytest.mark.parametrize("side_by_side", [(), ("-n", "2")])
def test_the_recorder_keeps_the_worst_of_each_test(tmp_path: Path, side_by_side: tuple[str, ...]) -> None:
    content = run(tmp_path, *side_by_side)
    assert {test.partition("::")[2]: outcome for test, outcome in content["outcomes"].items()} == {
        "test_core": "passed",
        "test_x[a::b]": "passed",
        "test_both": "skipped",
        "test_nowhere": "passed",
        "test_marked": "skipped",
        "test_fails": "error",
        "test_known": "xfailed",
    }
    (place, reason), marked = (content["reasons"][f"tests/test_it.py::{name}"] for name in ("test_both", "test_marked"))
    assert place.endswith("test_it.py") and reason == "no tool"
    assert marked == ["a marker", "no card"]


@pytest.mark.parametrize("side_by_side", [(), ("-n", "2")])
@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ("none", {"test_core", "test_marked", "test_fails", "test_known"}),
        ("numpy", {"test_x[a::b]", "test_both"}),
        ("pytest", {"test_both"}),
    ],
)
def test_an_environment_takes_the_tests_that_need_it_and_nothing_that_is_missing(
    tmp_path: Path, wanted: str, taken: set[str], side_by_side: tuple[str, ...]
) -> None:
    content = run(tmp_path, "--needing", wanted, *side_by_side)
    assert names(list(content["outcomes"])) == taken
    assert names(content["elsewhere"]) == {"test_core", "test_x[a::b]", "test_both", "test_nowhere", "test_marked", "test_fails", "test_known"} - taken


def test_the_workflow_runs_every_environment_on_its_python() -> None:
    listed = re.search(r"^env_list =\n((?: +\S+\n)+)", (ROOT / "tox.ini").read_text(), re.M)
    assert listed is not None
    # py31{2,3}-every stands for two environments.
    parts = [re.fullmatch(r"py(\w+)\{([\d,]+)\}-(\w+)|(\S+)", name) for name in listed[1].split()]
    wanted = {name for part in parts if part for name in ([part[4]] if part[4] else [f"py{part[1]}{digit}-{part[3]}" for digit in part[2].split(",")])}
    jobs = re.findall(r'python: "(\S+)", environments: "([^"]+)"', (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert len(wanted) > 12 and len(jobs) == 4
    assert wanted <= {name for _, names in jobs for name in names.split()}
    assert not [name for python, names in jobs for name in names.split() if not name.startswith(f"py{python.replace('.', '')}-")]


@pytest.mark.parametrize("setup", sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*/setup.py"), *ROOT.glob("*/*/setup.py")]))
def test_setup_says_that_echo_runs_on_linux_only(setup: str, tmp_path: Path) -> None:
    """Before it imports what is not there either."""
    program = f"import runpy, sys; sys.platform = 'darwin'; runpy.run_path({str(ROOT / setup)!r})"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and re.fullmatch(r"Echo runs on Linux only.*darwin\.\n", done.stderr), done.stderr


TOX = """#!{python}
import json, pathlib, sys
if sys.argv[1] == "list":
    print("py3{minor}-one\\npy3{minor}-two\\npy399-two")
    sys.exit()
name = sys.argv[-1]
print("FAILURES of", name)
print("E   the error of", name)
good = {{"tests/test_it.py::test_a": "passed", "tests/test_it.py::test_b": "skipped"}}
bad = {{"tests/test_it.py::test_a": "passed", "tests/test_it.py::test_b": "{two}"}}
record = {{"outcomes": good if "one" in name else bad, "reasons": {{}}, "elsewhere": []}}
record["reasons"] = {{test: ["tests/test_it.py", "no tool"] for test, outcome in record["outcomes"].items() if outcome == "skipped"}}
pathlib.Path("build/outcomes", name + ".json").write_text(json.dumps(record))
sys.exit("failed" in record["outcomes"].values())
"""


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """tools/suites.py in a small repository, with a tox that runs nothing: of the second environment `two` is the outcome of a test."""
    for folder in ("tools", "tests", "bin"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tools" / "suites.py").write_text((ROOT / "tools" / "suites.py").read_text())
    (tmp_path / "tools" / "wheels.py").write_text("print('nothing to build')")
    (tmp_path / "tests" / "test_it.py").write_text("")
    (tmp_path / "tests" / "may_skip.toml").write_text("test = []\n")
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    minor = sys.version_info.minor
    (tmp_path / "bin" / f"python3.{minor}").symlink_to(sys.executable)

    def run(two: str, *names: str) -> subprocess.CompletedProcess[str]:
        tox = tmp_path / "bin" / "tox"
        tox.write_text(TOX.format(python=sys.executable, minor=minor, two=two))
        tox.chmod(0o755)
        env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        wanted = [name.format(minor) for name in names]
        command = [sys.executable, "tools/suites.py", *wanted]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    return run


def test_all_is_well_if_each_test_has_run_somewhere(small: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = small("passed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^=+ 3 passed, 1 skipped in [\d.]+s \(0:00:\d\d\) =+$", done.stdout.splitlines()[-1]), done.stdout
    assert "python3.99 is not installed; these environments are left out: py399-two" in done.stdout
    assert "FAILURES" not in done.stdout


def test_the_log_of_what_failed_is_shown(small: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = small("failed")
    assert done.returncode == 1
    assert "two FAILED" in done.stdout and "FAILURES of" in done.stdout and f"FAILURES of py3{sys.version_info.minor}-one" not in done.stdout
    failed, error, last = done.stdout.splitlines()[-3:]
    assert "1 failed, 2 passed, 1 skipped in" in last
    assert failed.endswith("-two FAILED:") and error.endswith("-two") and "E   the error of" in error, "the end says it again"


def test_a_test_that_is_skipped_everywhere_fails_the_run(small: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = small("skipped")
    assert done.returncode == 1 and "tests/test_it.py::test_b: no tool" in done.stdout
    assert "2 passed, 2 skipped, 1 error in" in done.stdout.splitlines()[-1]
    assert small("skipped", "py3{}-two").returncode == 0, "of some environments nobody expects every test"


def test_the_start_says_what_will_run_and_how_long_it_took(small: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    first, minor = small("passed").stdout.splitlines()[1], sys.version_info.minor
    assert "this runs all tests (2 environments" in first and f"py3{minor}-one, py3{minor}-two" in first and "usually takes about 27 minutes" in first
    (tmp_path / "build" / "durations.json").write_text('{"whole": 1500}')
    assert "the last time it took 25 minutes" in small("passed").stdout
    assert json.loads((tmp_path / "build" / "durations.json").read_text())["whole"] < 1500, "this run was shorter, and is the last one now"
    assert "took" not in small("passed", "py3{}-two").stdout


def test_quick_runs_one_environment_on_one_python(small: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = small("passed", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"1 environment, 4 at a time: py3{sys.version_info.minor}-quick" in done.stdout and "about 5 minutes" in done.stdout
    assert "No environment has run these tests" not in done.stdout
    assert small("passed", "--quick", "py3{}-two").returncode == 2


def test_other_pythons_run_on_the_newest_unless_each_is_asked_for(suites: ModuleType) -> None:
    listed = ["py311-tcp", "py311-every", "py312-evochi", "py312-every", "py313-every", "py314-every"]
    assert suites.on_the_newest(listed, "python3.11") == ["py311-tcp", "py311-every", "py312-evochi", "py314-every"]
    assert suites.on_the_newest(["py312-every", "py313-every"], "python3.11") == ["py313-every"], "without the first one"
    assert suites.on_the_newest([], "python3.11") == []
    text = (ROOT / "tox.ini").read_text()
    assert f"CXXFLAGS = {suites.OTHERS}\n" in text, "otherwise the wheels would be built twice"


def test_every_file_of_the_quick_choice_exists() -> None:
    text = (ROOT / "tox.ini").read_text()
    kits = re.findall(r"(\S+\.py)::(\w+)", re.findall(r"^kits = (.*)$", text, re.M)[0])
    assert len(kits) == 2 and all(f"class {name}(" in (ROOT / file).read_text() for file, name in kits)


def test_dev_hands_quick_to_the_runner_and_the_rest_to_tox() -> None:
    dev = (ROOT / "dev").read_text()
    assert re.search(r'"" \| --quick \| --every-python\) exec python tools/suites\.py "\$@" ;; \*\) exec tox run "\$@"', dev)
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "./dev test --quick" in (ROOT / page).read_text(), page

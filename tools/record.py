"""A pytest plugin for tox's environments: it selects the tests of an environment, and records the outcome of each test.

    python -m pytest -p tools.record --needing echo-tcp --outcomes FILE tests/core plugins/echo_tcp/tests

`--needing NAME` selects, among the tests in tests/, only those that are marked `needs(NAME)` and need nothing that is missing here; `--needing
none` selects those that need nothing but echo-core. A test therefore runs once, in the environment in which least is installed, although several
environments are given the same folder.

`--outcomes FILE` writes one JSON object: the outcome of each test by its id, and the tests that were left to other environments.
tools/suites.py reads these files to find the tests that no environment has run. With pytest-xdist (`-n 3`) the file is the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent.parent / "tests"
EVERYWHERE = {"echo-core", "echo-testing"}  # these are installed in every environment
WORST = ("passed", "skipped", "xfailed", "failed", "error")  # if the parts of one test differ, the one that is later in this list counts


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("matrix")
    group.addoption("--needing", metavar="NAME", help="from tests/, run only the tests that need this distribution, or `none`")
    group.addoption("--outcomes", type=Path, metavar="FILE", help="where to write the outcome of each test")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.outcomes:
        # Of pytest-xdist's processes, those that run tests have a `workeroutput`, and the one that started them gets every report.
        recorder = Deselected(config.workeroutput) if hasattr(config, "workeroutput") else Recorder(config.option.outcomes)
        config.pluginmanager.register(recorder, "outcomes")


def needed(item: pytest.Item) -> set[str]:
    """The distributions that a test is marked to need."""
    return {name for marker in item.iter_markers("needs") for name in marker.args} - EVERYWHERE


def installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.option.needing
    if not wanted:
        return

    def belongs(item: pytest.Item) -> bool:
        names = needed(item)
        return not item.path.is_relative_to(TESTS) or (not names if wanted == "none" else wanted in names and all(map(installed, names)))

    chosen = [item for item in items if belongs(item)]
    config.hook.pytest_deselected(items=[item for item in items if not belongs(item)])
    items[:] = chosen


class Deselected:
    """Tells the process that records which tests are left to other environments: pytest-xdist collects in its workers only."""

    def __init__(self, output: dict[str, Any]) -> None:
        self.output = output

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.output["elsewhere"] = [*self.output.get("elsewhere", ()), *(item.nodeid for item in items)]


class Recorder:
    """Keeps outcomes by test id; a module that could not be collected counts as one test with the module's id."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, list[str]] = {}  # for skipped tests: what skipped it, a file or "a marker", and the reason
        self.elsewhere: dict[str, None] = {}  # a set that keeps the order
        self.begun = time.time()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.elsewhere |= dict.fromkeys(item.nodeid for item in items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.elsewhere |= dict.fromkeys(getattr(node, "workeroutput", {}).get("elsewhere", ()))  # one that died has said nothing

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self.keep(report, "error" if report.outcome == "failed" else "skipped")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed"
        elif outcome == "failed" and report.when != "call":
            outcome = "error"
        self.keep(report, outcome)

    def keep(self, report: pytest.CollectReport | pytest.TestReport, outcome: str) -> None:
        nodeid, why = report.nodeid, report.longrepr
        before = self.outcomes.get(nodeid, "passed")
        self.outcomes[nodeid] = max(before, outcome, key=WORST.index)
        if outcome == "skipped" and isinstance(why, tuple):
            # Of a test that a marker skips pytest shows the function's file, which did not decide it: it may be a clause of the kit.
            marked = {"skip", "skipif"} & set(getattr(report, "keywords", ()))
            self.reasons[nodeid] = ["a marker" if marked else str(why[0]), str(why[2]).removeprefix("Skipped: ")]

    def pytest_sessionfinish(self) -> None:
        record = {
            "seconds": round(time.time() - self.begun, 1),
            "outcomes": self.outcomes,
            "reasons": self.reasons,
            "elsewhere": [*self.elsewhere],
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(record, indent=0))

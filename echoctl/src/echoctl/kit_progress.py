"""A plugin of pytest for `echoctl plugins check`: it writes each clause to a file when it begins and when it ends.

So the command knows what passed, and which clause was running, even if the run had to be stopped.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any

__all__ = ["FILE", "pytest_collection_modifyitems", "pytest_runtest_logreport", "pytest_runtest_logstart"]

FILE = "ECHO_KIT_PROGRESS"  # the environment variable that names the file

_lock = threading.Lock()


def _write(**line: Any) -> None:
    with _lock, open(os.environ[FILE], "a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    _write(event="found", count=len(items))


def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
    _write(event="begins", clause=_clause(nodeid))


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        why = "" if report.outcome == "passed" else _why(report)
        _write(event=report.outcome, clause=_clause(report.nodeid), why=why)
    if report.when == "teardown":
        _write(event="over", clause=_clause(report.nodeid))


def _clause(nodeid: str) -> str:
    """`TestUds.test_it_waits` of a path and a class."""
    return ".".join(nodeid.split("::")[1:])


def _why(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr)[:500]

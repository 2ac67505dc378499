"""A pytest plugin for the emulated machine: it lengthens waits in the tests by the factor ECHO_TEST_SLOWER.

The kit's own waits already use it (`echo_testing.processes.SLOWER`). This plugin lengthens the waits of other tests: for messages of
another process, and for the silence after which an end counts as lost (LEASE in the tests). Signs of life are sent as often as elsewhere.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import pytest

from echo_testing.processes import SLOWER

_poll = Connection.poll


def poll(self: Any, timeout: float | None = 0.0) -> bool:
    return _poll(self, timeout and timeout * SLOWER)


Connection.poll = poll  # type: ignore[method-assign,assignment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leases = {id(lease): lease for item in items if (lease := getattr(getattr(item, "module", None), "LEASE", None))}
    for lease in leases.values():
        lease["lease"] *= SLOWER


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print at once why a test failed, because the machine may be ended long before the last test."""
    if report.failed:
        print(f"\n{report.longreprtext}\n", flush=True)

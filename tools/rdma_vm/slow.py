"""A plugin for pytest inside the machine: what tests wait for by themselves may take longer there (ECHO_TEST_SLOWER times).

The kit's own waits know of it (`echo_core.testing.processes.SLOWER`); here are those of other tests: for what another process says, and the
silence after which an end counts as lost, which tests name LEASE. Signs of life come as often as anywhere.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import pytest

from echo_core.testing.processes import SLOWER

_poll = Connection.poll


def poll(self: Any, timeout: float | None = 0.0) -> bool:
    return _poll(self, timeout and timeout * SLOWER)


Connection.poll = poll  # type: ignore[method-assign,assignment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leases = {id(lease): lease for item in items if (lease := getattr(getattr(item, "module", None), "LEASE", None))}
    for lease in leases.values():
        lease["lease"] *= SLOWER


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Why a test failed, at once: the machine may be ended long before the last."""
    if report.failed:
        print(f"\n{report.longreprtext}\n", flush=True)

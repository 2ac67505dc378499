"""The families of measurements: `stream` (samples that come out once) and `replay` (tables that are drawn from).

Each is a package with the same parts: `cases`, `adapters`, `modes`, `bars`, `report`, `plot`. The harness and the processes it starts
are told the suite's name and take the parts from here; reading a result file needs no system, nor a picture matplotlib until it is drawn.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

PACKAGES = {"stream": "benchmarks", "replay": "benchmarks.replay"}


def part(suite: str, name: str) -> Any:
    """One of a suite's modules."""
    return import_module(f"{PACKAGES[suite]}.{name}")

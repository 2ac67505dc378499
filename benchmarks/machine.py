"""Where figures come from: hardware, interpreter, code revision. No names of hosts or people."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.processes import ROOT


def describe() -> dict[str, Any]:
    """The parts of a result file that say when, where and what code was measured."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu_model(),
            "cores": _cores(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "system": f"{platform.system()} {platform.release().split('-')[0]}",
            "architecture": platform.machine(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            # The load just before: figures from a busy machine say less.
            "load": round(os.getloadavg()[0], 2),
        },
        "git": _revision(),
    }


def _cores() -> int:
    """The cores this process may use, which a container or taskset may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or "unknown"


def _revision() -> dict[str, Any]:
    """The commit measured, and whether tracked files differ from it."""

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return {
            "revision": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.CalledProcessError):
        return {"revision": None, "dirty": None}

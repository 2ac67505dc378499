"""How much memory the control groups of this process still allow. In a container, that is less than the machine has."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_memory", "memory_left", "total_memory"]

ROOT = Path("/sys/fs/cgroup")


def memory_left() -> float:
    """Bytes until the first limit is reached; inf where there is no limit. Memory that the kernel would reclaim first counts as free."""
    return min((left for group in _groups() if (left := _left(group)) is not None), default=math.inf)


def _groups() -> Iterator[Path]:
    """The memory groups of this process and all their parents, because a parent's limit also holds for everything below it."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = [ROOT, ROOT / "unified"]
        elif "memory" in controllers.split(","):
            roots = [ROOT / "memory"]
        else:
            continue
        for root in roots:
            group = root / path.lstrip("/")
            if not group.is_dir():
                group = root  # inside a container, the path may be the one that is valid outside
            while True:
                yield group
                if group == root:
                    break
                group = group.parent


def _left(group: Path) -> float | None:
    """Bytes that this group still allows; None if it has no limit that can be read."""
    for limit, usage, idle in (
        ("memory.max", "memory.current", "inactive_file "),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
    ):
        try:
            most = int((group / limit).read_text())  # ValueError: "max"
            used = int((group / usage).read_text())
            stat = (group / "memory.stat").read_text().splitlines()
        except (OSError, ValueError):
            continue
        free = sum(int(line.split()[1]) for line in stat if line.startswith(idle))
        return max(0, most - used + free)
    return None


def available_memory() -> int:
    """Bytes that can be allocated without swapping, and without the control group's limit being met."""
    left = memory_left()
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(min(left, int(line.split()[1]) * 1024))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def total_memory() -> int:
    """Bytes of memory that this process may use at most: the machine's, or the smallest limit of its control groups."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for group in _groups() if (limit := _limit(group)) is not None)])


def _limit(group: Path) -> int | None:
    """The limit of this group in bytes; None if it has none that can be read."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            return int((group / name).read_text())  # ValueError: "max"
        except (OSError, ValueError):
            continue
    return None

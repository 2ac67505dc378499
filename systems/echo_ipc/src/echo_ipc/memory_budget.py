"""How much memory a runner is going to need, and how much there is: to be asked before large buffers are made.

What is available is the least of what the machine, the container (its cgroups) and, for files in /dev/shm, that file system still have. The memory of
this package is a memfd, so the size of /dev/shm does not limit it; memory that other libraries share may lie there.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

__all__ = [
    "Budget",
    "estimate_appo_bytes",
    "estimate_offpolicy_bytes",
    "get_available_memory_bytes",
    "get_reservable_memory_bytes",
    "get_shared_memory_available_bytes",
    "raise_if_shared_memory_over_budget",
    "warn_if_over_budget",
]

FLOAT = 4  # bytes
CGROUPS = Path("/sys/fs/cgroup")
NO_LIMIT = 1 << 60  # cgroups of the first version write a number near 2**63 for "no limit"


class Budget(TypedDict, total=False):
    """An estimate in bytes: `total`, its parts, and `breakdown`, a text for people."""

    total: int
    breakdown: str
    replay_buffer: int
    ring_buffer: int
    bounded_ingress_slots: int


def estimate_offpolicy_bytes(num_envs: int, replay_buffer_n: int, obs_dim: int, action_dim: int, critic_dim: int, ingress_depth: int = 0) -> Budget:
    """The memory of a replay buffer of `replay_buffer_n` steps of each environment, float32.

    `ingress_depth`: how many batches of one step of every environment wait in front of it.
    """
    width = 2 * (obs_dim + critic_dim) + action_dim + 3  # reward, done and truncated
    rows = replay_buffer_n * num_envs
    replay, ingress = rows * width * FLOAT, ingress_depth * num_envs * width * FLOAT
    text = f"replay: {_mib(replay)} MiB ({rows:,} rows of {width} numbers)"
    if ingress:
        text += f"\n  ingress: {_mib(ingress)} MiB ({ingress_depth} batches of {num_envs:,} rows)"
    return Budget(replay_buffer=replay, bounded_ingress_slots=ingress, total=replay + ingress, breakdown=text)


def estimate_appo_bytes(num_envs: int, steps_per_env: int, obs_dim: int, action_dim: int, critic_dim: int, num_slots: int = 4) -> Budget:
    """The memory of a ring of rollouts, float32. Two slots are added to `num_slots`: one that is being written and one that is being read."""
    of_step = obs_dim + critic_dim + action_dim + 4  # log-probability, reward, done and truncated
    slot = num_envs * (steps_per_env * of_step + obs_dim + critic_dim) * FLOAT
    total = slot * (num_slots + 2)
    text = f"ring: {_mib(total)} MiB ({num_slots} + 2 slots of {num_envs:,} environments, {steps_per_env} steps of {of_step} numbers)"
    return Budget(ring_buffer=total, total=total, breakdown=text)


def get_available_memory_bytes() -> int | None:
    """How much memory this process can still get without anything being swapped out: the least of machine and cgroups. None if unknown."""
    return _least(_meminfo("MemAvailable"), *_left_in_cgroups())


def get_reservable_memory_bytes() -> int | None:
    """As get_available_memory_bytes(), with the machine's free swap."""
    machine = _meminfo("MemAvailable")
    return _least(None if machine is None else machine + (_meminfo("SwapFree") or 0), *_left_in_cgroups())


def get_shared_memory_available_bytes(path: str = "/dev/shm") -> int | None:
    """How much the file system of `path` still has, or how large a file may be (RLIMIT_FSIZE), if that is less. None if unknown."""
    try:
        free = shutil.disk_usage(path).free
    except OSError:
        return None
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return free if largest == resource.RLIM_INFINITY else min(free, largest)


def raise_if_shared_memory_over_budget(estimated: Mapping[str, object], label: str, threshold: float = 0.8, path: str = "/dev/shm") -> None:
    """Raise MemoryError if `estimated["total"]` bytes are more than `threshold` of what `path` still has."""
    available = get_shared_memory_available_bytes(path)
    total = _total(estimated)
    if available is not None and total > available * threshold:
        raise MemoryError(
            f"{label} needs {_gib(total)} GiB of shared memory, but {path} has {_gib(available)} GiB left, of which {threshold:.0%} may be used; "
            f"use fewer environments or a smaller buffer, or make {path} larger (docker run --shm-size)"
        )


def warn_if_over_budget(estimated: Mapping[str, object], label: str, threshold: float = 0.8) -> None:
    """Print a warning to stderr if `estimated["total"]` bytes are more than `threshold` of the available memory.

    The environment variable UNILAB_SKIP_MEMORY_CHECK, set to anything, turns this off.
    """
    if os.environ.get("UNILAB_SKIP_MEMORY_CHECK"):
        return
    available = get_available_memory_bytes()
    total = _total(estimated)
    if available is not None and total > available * threshold:
        print(
            f"Warning: {label} needs about {_gib(total)} GiB, and {_gib(available)} GiB of memory are available.\n  {estimated.get('breakdown', '')}\n"
            "  Use fewer environments or a smaller buffer. UNILAB_SKIP_MEMORY_CHECK=1 turns this warning off.",
            file=sys.stderr,
            flush=True,
        )


def _total(estimated: Mapping[str, object]) -> int:
    return int(estimated["total"])  # type: ignore[call-overload, no-any-return]


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f}"


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f}"


def _least(*figures: int | None) -> int | None:
    return min((figure for figure in figures if figure is not None), default=None)


def _meminfo(key: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _left_in_cgroups() -> Iterator[int]:
    """What is left to this process' cgroup and to each of those above it that has a limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield from _left(CGROUPS, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            yield from _left(CGROUPS / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left(root: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    folder = root / path.lstrip("/")
    # In a container the path is that of the host, and does not exist here; the container's own cgroup is then the root.
    for place in [folder, *folder.parents] if folder.exists() else [root]:
        try:
            most = (place / limit).read_text().strip()
            if most != "max" and int(most) < NO_LIMIT:
                stat = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
                # Pages of files that nobody has used for long are given back when memory is wanted.
                yield max(0, int(most) - int((place / usage).read_text()) + int(stat.get(reclaimable, 0)))
        except (OSError, ValueError):
            pass
        if place == root:
            break

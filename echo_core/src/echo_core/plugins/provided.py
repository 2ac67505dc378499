"""What installed distributions provide to Echo, which is kept in memory until one of them is installed or removed.

Reading it opens a file of every distribution: 15 ms where a hundred are installed. Every server, client and table asks.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points
from typing import Any, NamedTuple

from ..base.descriptors import lacks_descriptors

__all__ = ["Provided", "provided"]

_SETTLED = 10.0  # seconds since the last change of a folder. An installer may still be writing in one that has just changed.
_PREFIX = "echo"  # of the names of Echo's groups


class Provided(NamedTuple):
    """An entry point, and the distribution that has it."""

    entry: EntryPoint
    name: str
    version: str


_kept: tuple[Any, dict[str, list[Provided]]] | None = None  # replaced as a whole, so that threads need no lock


def provided(group: str) -> list[Provided]:
    """All entry points of a group. Installing or removing a distribution is noticed by the folders of `sys.path`, which change then.

    Raises:
        OSError: no file descriptor is left.
    """
    global _kept
    now, (folders, changed) = time.time(), _folders()
    kept = _kept
    if kept is None or kept[0] != folders:
        kept = folders, _read()
        # Without a file descriptor, a folder looks empty.
        _kept = kept if now - changed > _SETTLED and _by_path() and not lacks_descriptors() else None
    return kept[1].get(group, [])


def _folders() -> tuple[list[tuple[Any, ...]], float]:
    """What tells whether the folders of `sys.path` are as they were, and when the last of them changed."""
    found: list[tuple[Any, ...]] = []
    changed = 0.0
    for path in sys.path:
        try:
            state = os.stat(path or ".")
        except OSError:
            found.append((path,))
        else:
            found.append((path, state.st_dev, state.st_ino, state.st_mtime_ns))
            changed = max(changed, state.st_mtime)
    return found, changed


def _by_path() -> bool:
    """Whether all distributions lie in folders of `sys.path`. Finders of other kinds do not tell when theirs change."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    return all(getattr(finder, "__name__", type(finder).__name__) in ("PathFinder", "MetadataPathFinder") for finder in finders)


def _read() -> dict[str, list[Provided]]:
    everything = entry_points()
    found: dict[str, list[Provided]] = {}
    for group in everything.groups:
        if group == _PREFIX or group.startswith(f"{_PREFIX}."):
            found[group] = [Provided(entry, *_distribution(entry)) for entry in everything.select(group=group)]
    return found


def _distribution(entry: EntryPoint) -> tuple[str, str]:
    """Name and version of the distribution that the entry point belongs to; "?" stands for a value that the distribution lacks.

    A distribution that is being installed at this moment lists its entry points before its metadata is there, and must not break the
    others. Depending on the version of Python, these values are then None or reading them raises.
    """
    try:
        return (entry.dist.name or "?", entry.dist.version or "?") if entry.dist else ("?", "?")
    except (KeyError, PackageNotFoundError):
        return "?", "?"

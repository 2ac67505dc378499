"""What installed distributions provide to Echo, which is kept in memory until one of them is installed or removed.

Reading it opens a file of every distribution: 15 ms where a hundred are installed. Every server, client and table asks.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points
from typing import Any, NamedTuple

from ..base.descriptors import lacks_descriptors

__all__ = ["Provided", "provided"]

_SETTLED = 10.0  # seconds since the last change of a folder. An installer may still be writing in one that has just changed.
_METADATA = (".dist-info", ".egg-info", "egg-info")  # ends of the names of folders, in lower case, that describe a distribution
_PREFIX = "echo"  # of the names of Echo's groups


class Provided(NamedTuple):
    """An entry point, and the distribution that has it."""

    entry: EntryPoint
    name: str
    version: str


class _Listed(NamedTuple):
    """The distributions of one folder of `sys.path`."""

    folder: tuple[int, int, int]  # what `os.stat` said
    found: tuple[tuple[str, int], ...]  # each with its last change, in ns
    settled: bool  # whether the folder had not changed for a while


# Each is replaced as a whole, so that threads need no lock.
_kept: tuple[Any, dict[str, list[Provided]]] | None = None
_listed: dict[str, _Listed] = {}


def provided(group: str) -> list[Provided]:
    """All entry points of a group. Installing or removing a distribution is noticed by the folders of `sys.path`, which change then.

    Raises:
        OSError: no file descriptor is left.
    """
    global _kept
    now = time.time_ns()
    installed = [(path, listed.found) for path in sys.path if (listed := _list(path, now)).found]
    kept = _kept
    if kept is None or kept[0] != installed:
        kept = installed, _read()
        changed = max((change for _, found in installed for _, change in found), default=0)
        # Without a file descriptor, a folder looks empty.
        _kept = kept if _is_settled(changed, now) and _by_path() and not lacks_descriptors() else None
    return kept[1].get(group, [])


def _list(path: str, now: int) -> _Listed:
    """The distributions of a folder. It is listed again only if it has changed, or had just changed the last time."""
    try:
        state = os.stat(path or ".")
        folder = (state.st_dev, state.st_ino, state.st_mtime_ns)
        known = _listed.get(path)
        if known is not None and known.folder == folder and known.settled:
            return known
        if stat.S_ISDIR(state.st_mode):
            with os.scandir(path or ".") as entries:
                found = sorted((entry.name, entry.stat(follow_symlinks=False).st_mtime_ns) for entry in entries if entry.name.lower().endswith(_METADATA))
        else:  # an archive
            found = [("", state.st_mtime_ns)]
    except OSError as error:
        if lacks_descriptors(error):
            raise
        return _Listed((0, 0, 0), (), settled=False)
    _listed[path] = listed = _Listed(folder, tuple(found), _is_settled(state.st_mtime_ns, now))
    return listed


def _is_settled(changed: int, now: int) -> bool:
    return now - changed > _SETTLED * 1e9


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

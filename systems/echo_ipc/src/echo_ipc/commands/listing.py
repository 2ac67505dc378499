"""Which shared memory the processes of this user have, and what happens in it. Looking changes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .. import _native
from ..arrays.schema import Schema
from ..segments.memory import _KINDS, _is_sealed

__all__ = ["FoundSegment", "segments"]

LABEL = "/memfd:echo-ipc-"
_CLASSES: dict[int, type[_native.NativeCell] | type[_native.NativeRing] | type[_native.NativeRows]] = {
    _native.CELL: _native.NativeCell,
    _native.RING: _native.NativeRing,
    _native.ROWS: _native.NativeRows,
}


@dataclass(frozen=True)
class FoundSegment:
    """One piece of shared memory.

    Attributes:
        name: by which a process can attach, as long as the first of `pids` has it open.
        kind: "cell", "ring" or "rows".
        nbytes: its size.
        pids: the processes that have it open, in order.
        fields: its arrays, such as "obs float32[4]".
        figures: what `stats()` of an object on it returns.
    """

    name: str
    kind: str
    nbytes: int
    pids: tuple[int, ...]
    fields: tuple[str, ...]
    figures: dict[str, int]


def segments() -> list[FoundSegment]:
    """All that this user's processes have open here, the largest first."""
    places: dict[int, list[tuple[int, int]]] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        for fd, inode in _open_in(pid):
            places.setdefault(inode, []).append((pid, fd))
    found = [segment for inode, where in places.items() if (segment := _look(inode, where)) is not None]
    return sorted(found, key=lambda segment: (-segment.nbytes, segment.name))


def _open_in(pid: int) -> list[tuple[int, int]]:
    """(descriptor, inode) of shared memory that a process has open; none if it belongs to somebody else or has ended."""
    found = []
    folder = Path(f"/proc/{pid}/fd")
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    for name in names:
        try:
            if os.readlink(folder / name).startswith(LABEL):
                found.append((int(name), os.stat(folder / name).st_ino))
        except OSError:
            continue
    return found


def _look(inode: int, where: list[tuple[int, int]]) -> FoundSegment | None:
    pid, number = where[0]
    path = f"/proc/{pid}/fd/{number}"
    mapping = _map(path, inode, False)
    kind = None if mapping is None else next((kind for kind in _KINDS if mapping.wrong(kind) is None), None)
    if kind == _native.RING:
        mapping = _map(path, inode, True)  # a ring cannot be used otherwise, although its figures are only read
    if mapping is None or kind is None:
        return None  # it was closed, is not ready yet, or is of another version
    fields = tuple(f"{field.name} {field.text()}" for field in Schema.from_json(mapping.schema).fields)
    pids = tuple(sorted({pid for pid, _ in where}))
    return FoundSegment(f"{pid}.{number}.{inode}.{mapping.nonce:x}", _KINDS[kind], mapping.size, pids, fields, _CLASSES[kind](mapping).figures())


def _map(path: str, inode: int, writable: bool) -> _native.Mapping | None:
    try:
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        # Another file may have this number by now, and error pipes have the same label but no seals.
        return _native.Mapping(fd, found.st_size, writable) if found.st_ino == inode and _is_sealed(fd) else None
    finally:
        os.close(fd)

"""The newest state of a search, in a file beside its epoch log."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path

from echo_core import CheckpointError

__all__ = ["StateFile", "sync_folder"]

_MAGIC = b"echo-es state\n" + struct.pack("<I", 1)
_CHECK = struct.Struct("<II")  # checksum of all that follows it, bytes of JSON


class StateFile:
    """The file is replaced as a whole, so it never has half a state. `run` names the log that it belongs to."""

    def __init__(self, path: Path, run: str) -> None:
        self.path, self._run = path, run

    def replace(self, version: int, told: int, data: bytes) -> None:
        """Write this state. Returns when it is on the disk."""
        head = json.dumps({"run": self._run, "version": version, "told": told}).encode()
        size = struct.pack("<I", len(head))
        fresh = self.path.with_name(self.path.name + ".new")
        with open(fresh, "wb") as file:
            file.write(_MAGIC + struct.pack("<I", zlib.crc32(data, zlib.crc32(head, zlib.crc32(size)))) + size + head)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self.path)
        sync_folder(self.path.parent)

    def read(self) -> tuple[int, int, bytes] | None:
        """(version, told, data); None if there is no file, or if it belongs to another log. Raises CheckpointError if the file is damaged."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        begin = len(_MAGIC) + _CHECK.size
        if len(content) < begin or not content.startswith(_MAGIC):
            raise CheckpointError(f"{self.path} is no state that this echo-es has written; move it away, or restore it from a backup")
        check, length = _CHECK.unpack_from(content, len(_MAGIC))
        if zlib.crc32(memoryview(content)[begin - 4 :]) != check:
            raise CheckpointError(f"{self.path} is damaged: its checksum does not fit; restore it from a backup")
        head = json.loads(content[begin : begin + length])
        return (head["version"], head["told"], content[begin + length :]) if head["run"] == self._run else None


def sync_folder(folder: Path) -> None:
    """Have the names of the files in a folder on the disk, too."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

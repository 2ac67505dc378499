"""Writes an epoch log."""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from echo_core import ConfigError

from ..arguments import path_of
from ..search.tasks import Rewards
from .contents import MAGIC, contents_of
from .records import record
from .state_file import StateFile, sync_folder

__all__ = ["FLUSH_SECONDS", "EpochLog"]

FLUSH_SECONDS = 1.0


class EpochLog:
    """Opens a log to write it, or creates it. Only one process at a time can have it open. Thread-safe.

    If a write fails, the log is closed: half a record may be at its end, and nothing may follow that.

    Args:
        path: the file. The newest state is in a file beside it, whose name has `.state` after it.
        search: a description of the search that JSON can represent: its name, strategy, population and seed. A log of another search is refused.

    Attributes:
        found: what the log said when it was opened.
        run: the name of the run, which the log's first server chose.

    Raises:
        ConfigError: another server writes it, it belongs to another search, or it is no log. CheckpointError: it is damaged before its end.
        OSError: it cannot be opened or written.
    """

    def __init__(self, path: str | os.PathLike[str], search: Mapping[str, Any]) -> None:
        self.path = path_of("path", path)
        self._guard = threading.Lock()
        self._pending: list[bytes] = []  # records of rewards that are not written yet
        self._flushed = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b", buffering=0)
        try:
            self._lock()
            self.found = contents_of(self.path, self._file)
            if self.found.search:
                _same_search(self.path, self.found.search, search)
            self._file.truncate(self.found.whole)
            self._file.seek(self.found.whole)
            start = b"" if self.found.whole else MAGIC
            if not self.found.search:
                self.found.search = {"run": secrets.token_hex(8), **search}
                start += record("search", {"search": self.found.search, "time": time.time()}, b"")
            self._write(start)
            sync_folder(self.path.parent)
        except BaseException:
            self._file.close()
            raise
        self.run: str = self.found.search["run"]
        self._state = StateFile(self.path.with_name(self.path.name + ".state"), self.run)

    def part(self, epoch: int, slices: tuple[slice, ...], rewards: Rewards) -> None:
        """Keep these rewards of an epoch, in the order of the slices, until `flush`."""
        kept = record("part", {"epoch": epoch, "slices": [[part.start, part.stop] for part in slices]}, _bytes(rewards))
        with self._guard:
            self._pending.append(kept)

    def flush(self, after: float = 0.0) -> None:
        """Write the rewards that were kept, unless that was done less than `after` seconds ago. Returns when they are on the disk."""
        with self._guard:
            if self._pending and time.monotonic() - self._flushed >= after:
                self._write(b"")

    def epoch(self, number: int, rewards: Rewards, seen: bytes | None = None) -> None:
        """An epoch is complete. `seen`: the merged statistics of observations, if they have changed. Returns when all of it is on the disk."""
        records = record("epoch", {"epoch": number, "time": time.time()}, _bytes(rewards))
        if seen is not None:
            records += record("seen", {"epoch": number}, seen)
        with self._guard:
            self._pending.clear()  # they are among these rewards
            self._write(records)

    def seen(self, epoch: int, statistics: bytes) -> None:
        """The merged statistics of observations of a steady search. Returns when they are on the disk."""
        with self._guard:
            self._write(record("seen", {"epoch": epoch}, statistics))

    def test(self, epoch: int, rewards: Rewards) -> None:
        """The rewards of a test. Returns when they are on the disk."""
        with self._guard:
            self._write(record("test", {"epoch": epoch, "time": time.time()}, _bytes(rewards)))

    def state(self, version: int, data: bytes, told: int = 0) -> None:
        """Replace the state beside the log. Returns when it is on the disk.

        Args:
            version: how many epochs were optimised.
            data: the state as bytes.
            told: how many rewards a steady search has been told.
        """
        self._state.replace(version, told, data)

    def saved_state(self) -> tuple[int, int, bytes] | None:
        """(version, told, data) of the newest `state` of this run, or None if there is none. Raises CheckpointError if the file is damaged."""
        return self._state.read()

    def close(self) -> None:
        """Write what was kept, and let others open the log. Idempotent."""
        if not self._file.closed:
            try:
                self.flush()
            finally:
                self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees it when this process ends, however that happens
        except BlockingIOError:
            raise ConfigError(f"log: another server writes {self.path}; stop it, or choose another file") from None

    def _write(self, data: bytes) -> None:
        """Write the rewards that were kept, then these records, and have them on the disk. `_guard` is held."""
        if self._file.closed:
            raise OSError(f"{self.path} was closed, or could not be written before")
        view = memoryview(b"".join([*self._pending, data]))
        self._pending.clear()
        try:
            while view:
                view = view[self._file.write(view) :]
            os.fdatasync(self._file.fileno())
        except BaseException:
            self._file.close()
            raise
        self._flushed = time.monotonic()


def _bytes(rewards: Rewards) -> bytes:
    return rewards.astype("<f8").tobytes()


def _same_search(path: Path, logged: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for key in dict.fromkeys([*wanted, *logged]):
        if key != "run" and logged.get(key) != wanted.get(key):
            raise ConfigError(
                f"log: {path} belongs to another search: its {key} is {logged.get(key)!r}, and this server's is {wanted.get(key)!r}; "
                "give the same arguments as before, or choose another file"
            )

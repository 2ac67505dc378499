"""A table of how long batches took to be packed, for people who look for what makes a learner wait."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

__all__ = ["PackLog"]

COLUMNS = ["tick_id", "slot", "field", "rows", "cols", "bytes", "dur_ns"]


class PackLog:
    """The file `verbose/pack_fields.csv` in a folder, with the columns of unilab.ipc. It is written line by line, so it can be read during a run.

    Args:
        folder: where; it is made if it does not exist.

    Raises OSError if the file cannot be written.
    """

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / "verbose" / "pack_fields.csv"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._write(COLUMNS, "w")

    def add(self, tick_id: int, slot: int, rows: int, columns: int, nbytes: int, nanoseconds: int) -> None:
        """One batch. All fields of a row are packed at once, so there is one line for all of them, whose field is "packed"."""
        self._write([tick_id, slot, "packed", rows, columns, nbytes, nanoseconds], "a")

    def _write(self, line: Sequence[object], mode: str) -> None:
        with open(self._path, mode, newline="") as file:
            csv.writer(file).writerow(line)

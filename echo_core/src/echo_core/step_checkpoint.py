"""The steps of a table of items over steps, as a checkpoint has them.

Like the items of any large table they are copied while writers run, oldest first. Those overwritten before their turn are left out, and
with them all that are older, since steps go in the order in which they came; and the items that have one of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .step_table import StepTable

__all__ = ["COLUMNS", "identity", "load_steps", "save_steps"]

COLUMNS = ("figures", "states", "links", "streams", "backlog", "runs")


def identity(table: StepTable) -> dict[str, Any]:
    """What must be the same at both ends, beside what every table has."""
    return {"items": table.layout.to_json(), "steps": table.stats()["steps_capacity"]}


def save_steps(
    folder: Path, index: int, table: StepTable, columns: dict[str, np.ndarray], files: dict[str, Any],
    save_array: Callable[..., dict[str, Any]], entry: Callable[..., dict[str, Any]], chunk: int,
) -> int:
    """Write what `StepTable.below` told and the steps' bytes; the number of the first step whose bytes are whole."""
    import os

    for column in COLUMNS:
        files[f"steps/{column}"] = save_array(folder / f"{index}.steps.{column}", columns[column])
    head, tail = int(columns["figures"][0]), int(columns["figures"][1])
    first = head
    for i, leaf in enumerate(table.step.leaves):
        path, crc = folder / f"{index}.step.{i}", 0
        step = max(1, chunk // max(1, leaf.nbytes))
        with open(path, "wb") as file:
            for start in range(head, tail, step):
                rows, oldest = table.step_rows(i, start, min(step, tail - start))
                if oldest > start:
                    first = max(first, min(oldest, start + len(rows)))
                data = rows.reshape(-1).view(np.uint8)
                file.write(data)  # type: ignore[arg-type]
                crc = zlib.crc32(data, crc)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        files[f"step/{i}"] = entry(path, leaf.dtype, (tail - head, *leaf.shape), crc)
    return first


def load_steps(
    table: StepTable, first: int, stored: np.ndarray, spans: np.ndarray, load_array: Callable[[str], np.ndarray]
) -> None:
    """Fill a table whose items are restored already with what `save_steps` wrote."""
    snapshot = {column: load_array(f"steps/{column}") for column in COLUMNS}
    skipped = first - int(snapshot["figures"][0])
    leaves = [load_array(f"step/{i}")[skipped:] for i in range(len(table.step.leaves))]
    table.restore_steps(snapshot, stored, spans, leaves, first)

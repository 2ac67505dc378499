"""The steps of a table of items over steps, in a checkpoint.

Like the items of any large table, they are copied while writers run, oldest first. If a step is overwritten before it is copied, the checkpoint
leaves it out, together with all older steps, since steps are removed in the order in which they came. It also leaves out the items that contain
such a step.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..steps.items import Slices
from .files import Output

if TYPE_CHECKING:
    from ..steps.step_table import StepTable

__all__ = ["COLUMNS", "identity", "read_steps", "save_steps"]

COLUMNS = ("figures", "states", "links", "streams", "backlog", "runs")
LIVE = 4  # State of steps/window_gather.hpp


def identity(table: StepTable) -> dict[str, Any]:
    """Return what a checkpoint and its table must have in common, in addition to what every table has."""
    return {"items": table.layout.to_json(), "steps": table.stats()["steps_capacity"]}


def save_steps(
    folder: Path, index: int, table: StepTable, columns: dict[str, np.ndarray], files: dict[str, Any],
    save_array: Callable[..., dict[str, Any]], entry: Callable[..., dict[str, Any]], chunk: int,
) -> int:
    """Write what `StepTable.below` returned, and the steps' bytes. Return the number of the first step whose bytes are complete."""
    for column in COLUMNS:
        files[f"steps/{column}"] = save_array(folder / f"{index}.steps.{column}", columns[column])
    head, tail = int(columns["figures"][0]), int(columns["figures"][1])
    first = head
    for i, leaf in enumerate(table.step.leaves):
        path, crc = folder / f"{index}.step.{i}", 0
        step = max(1, chunk // max(1, leaf.nbytes))
        with Output(open(path, "wb")) as file:
            for start in range(head, tail, step):
                rows, oldest = table.step_rows(i, start, min(step, tail - start))
                if oldest > start:
                    first = max(first, min(oldest, start + len(rows)))
                data = rows.reshape(-1).view(np.uint8)
                file.write(data)
                crc = zlib.crc32(data, crc)  # type: ignore[arg-type]
            file.finish()
        files[f"step/{i}"] = entry(path, leaf.dtype, (tail - head, *leaf.shape), crc)
    return first


def read_steps(table: StepTable, first: int, load_array: Callable[[str], np.ndarray]) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Return what `save_steps` wrote, in the form that `StepTable.restore_steps` takes: the columns, and the leaves from step `first` on.
    This changes nothing.

    Raises:
        ValueError: the parts are inconsistent or do not fit the table, or the table was written to already.
    """
    if table.steps_held:
        raise ValueError(f"table {table.name!r} was written to already; restore into a new one")
    columns = {column: load_array(f"steps/{column}") for column in COLUMNS}
    leaves = [load_array(f"step/{i}") for i in range(len(table.step.leaves))]
    _check(table, columns)
    head, tail = (int(figure) for figure in columns["figures"][:2])
    if type(first) is not int or not head <= first <= tail:
        raise ValueError(f"first is {first!r}, not a number from {head} to {tail}")
    for i, (leaf, array) in enumerate(zip(table.step.leaves, leaves)):
        if array.dtype != leaf.dtype or array.shape != (tail - head, *leaf.shape):
            raise ValueError(f"step/{i} is {array.dtype}{list(array.shape)}, not {leaf.dtype}{[tail - head, *leaf.shape]}")
    return columns, [leaf[first - head :] for leaf in leaves]


def _check(table: StepTable, columns: dict[str, np.ndarray]) -> None:
    """Check that all numbers that name places are within the table. For the columns see struct StepsImage of steps/steps.hpp."""
    for name, array in columns.items():
        dtype = np.dtype(np.uint8 if name == "states" else np.uint64)
        if array.dtype != dtype or array.ndim != 1:
            raise ValueError(f"steps/{name} are {array.dtype}{list(array.shape)}, not {dtype} of one dimension")
    figures, capacity = [int(figure) for figure in columns["figures"]], table.stats()["steps_capacity"]
    if len(figures) != 5 or max(figures) >= 1 << 63 or not 0 <= figures[1] - figures[0] <= capacity:
        raise ValueError(f"steps/figures are {figures}; they must be five numbers, for 0 to {capacity} steps")
    count = figures[1] - figures[0]
    for name, size in (("states", count), ("links", 2 * count)):
        if len(columns[name]) != size:
            raise ValueError(f"steps/{name} has {len(columns[name])} numbers, not {size}, for {count} steps")
    for name in ("backlog", "runs"):
        if len(columns[name]) % 3:
            raise ValueError(f"steps/{name} has {len(columns[name])} numbers, which is not a multiple of three")
    # Each episode whose slices are items has at least one step, and memory is allocated up to the largest episode number.
    episodes = columns["runs"][::3]
    if (episodes > capacity).any():
        raise ValueError(f"steps/runs has episode number {episodes.max()}, but {capacity} steps cannot have more than {capacity} episodes")
    slices = isinstance(table.layout.items, Slices)
    if slices and not np.isin(columns["links"][::2][(columns["states"] & LIVE) != 0], episodes).all():
        raise ValueError("steps/links name episodes that steps/runs does not have")
    streams, at = columns["streams"].tolist(), 0
    known = set(episodes.tolist())
    while at < len(streams):
        _, _, run, steps, _, follow = entry = (streams[at : at + 6] + [-1] * 6)[:6]
        expected = 1 if slices else min(steps, table.layout.lookback + table.layout.forward)
        if steps < 1 or follow != expected or at + 6 + follow > len(streams) or (slices and run not in known):
            raise ValueError(f"steps/streams have {entry} at {at} of {len(streams)}, which is no open episode")
        at += 6 + follow

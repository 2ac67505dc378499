"""Replay tables on disk: written while the server runs, whole or not at all, and checked when read.

    path/LATEST             the name of the newest checkpoint and its manifest's CRC-32, replaced in one step when that is whole
    path/00000007/          one checkpoint
        manifest.json       what there is: tables, specs, limiters, and every file with its dtype, shape and CRC-32
        0.keys, 0.leaf.0, … arrays, little-endian, as they lie in memory

Nothing is pickled. A table is paused only while its sampler's state, its index and up to 64 MiB of items are copied. The items of a larger
one follow with writers running, oldest first; those overwritten before their turn are left out, as the writers had evicted them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optree

from .dtypes import dtype_from_json, dtype_to_json
from .errors import CheckpointError
from .step_checkpoint import identity, load_steps, save_steps
from .step_table import SPAN, StepTable

if TYPE_CHECKING:
    from .replay_table import ReplayTable
    from .spec import Spec

__all__ = ["load", "save"]

FORMAT = 1
CHUNK_BYTES = 8 << 20  # of items, copied and written at once
COLUMNS = ("keys", "rows", "generations", "high", "times")


def save(tables: Mapping[str, ReplayTable], path: str | os.PathLike[str]) -> Path:
    """Write a checkpoint of `tables` into the directory `path`; the one before goes once this one is whole.

    Returns:
        the directory of this checkpoint.

    Raises:
        OSError: the disk is full or not writable; the checkpoint before is as it was.
    """
    root = Path(path)
    root.mkdir(parents=True, exist_ok=True)
    name = f"{1 + max((int(p.name) for p in root.iterdir() if p.name.isdigit()), default=0):08d}"
    folder = root / f".{name}.{os.getpid()}"
    folder.mkdir()
    try:
        described = [_save_table(folder, index, table) for index, table in enumerate(tables.values())]
        manifest = json.dumps({"format": FORMAT, "tables": described}).encode()
        _write(folder / "manifest.json", manifest)
        _sync(folder)
        final = root / name
        folder.rename(final)
        _sync(root)
        _write(root / ".LATEST", f"{name} {zlib.crc32(manifest):08x}\n".encode())
        (root / ".LATEST").rename(root / "LATEST")
        _sync(root)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for old in root.iterdir():
        if old.name.isdigit() and old.name != name:
            shutil.rmtree(old, ignore_errors=True)
    return final


def load(tables: Mapping[str, ReplayTable], path: str | os.PathLike[str]) -> None:
    """Fill new `tables` from the newest checkpoint in `path`.

    Raises:
        CheckpointError: there is none; a file is missing, truncated or corrupted, naming it; or table, spec, sampler, limiter, capacity or
            max_times_sampled are others than when it was written, naming which.
    """
    root = Path(path)
    try:
        name, crc = (root / "LATEST").read_text().split()
        folder, expected = root / str(int(name)).zfill(8), int(crc, 16)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{root} holds no whole checkpoint: {error}") from error
    try:
        text = (folder / "manifest.json").read_bytes()
        if zlib.crc32(text) != expected:
            raise CheckpointError(f"{folder / 'manifest.json'} is truncated or corrupted; take an older checkpoint")
        manifest = json.loads(text)
        described = {table["name"]: table for table in manifest["tables"]}
        number = manifest["format"]
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{folder / 'manifest.json'} cannot be read: {error!r}; take an older checkpoint") from error
    if number != FORMAT:
        raise CheckpointError(f"{folder} has format {number}, this echo-core reads {FORMAT}")
    if set(described) != set(tables):
        raise CheckpointError(f"{folder} has the tables {sorted(described)}, this server {sorted(tables)}; give it the same")
    for name, table in tables.items():
        _compare(folder, table, described[name])
    for name, table in tables.items():
        _load_table(folder, table, described[name])


def _identity(table: ReplayTable) -> dict[str, Any]:
    """What must be the same at both ends, in words people know."""
    return {
        "spec": table.spec.to_json(),
        "capacity": table.capacity,
        "rate limiter": [repr(number) for number in table.limiter.numbers()],
        "max_times_sampled": table.max_times_sampled,
        "sampler": _plugin(table.sampler),
        "remover": None if table.remover is None else _plugin(table.remover),
        **(identity(table) if isinstance(table, StepTable) else {}),
    }


def _plugin(sampler: Any) -> list[Any]:
    options = dataclasses.asdict(sampler.options) if dataclasses.is_dataclass(sampler.options) else {}
    return [type(sampler).__name__, json.loads(json.dumps(options, default=repr))]


def _compare(folder: Path, table: ReplayTable, described: dict[str, Any]) -> None:
    mine, theirs = _identity(table), described.get("identity", {})
    for what, value in json.loads(json.dumps(mine)).items():
        if theirs.get(what) == value:
            continue
        if what == "spec":
            other = type(table.spec).from_json(theirs.get("spec"))
            detail = table.spec.difference(other, "here", "in the checkpoint") or "they differ"
        else:
            detail = f"{theirs.get(what)} in the checkpoint, {value} here"
        raise CheckpointError(f"{folder}: table {table.name!r} has another {what}: {detail}; restore with the same, or start afresh")


def _stored(table: ReplayTable) -> Spec:
    """What an item's row is: with steps under it only where they begin."""
    return SPAN if isinstance(table, StepTable) else table.spec


def _save_table(folder: Path, index: int, table: ReplayTable) -> dict[str, Any]:
    snapshot = table.snapshot()
    files: dict[str, Any] = {}
    for column in COLUMNS:
        files[column] = _save_array(folder / f"{index}.{column}", snapshot[column])
    for part in ("sampler", "remover"):
        for key, array in snapshot[part].items():
            files[f"{part}/{key}"] = _save_array(folder / f"{index}.{part}.{len(files)}", np.asarray(array))
    gone = _save_items(folder, index, table, snapshot, files)
    files["gone"] = _save_array(folder / f"{index}.gone", gone)
    figures = {"inserts": snapshot["inserts"], "samples": snapshot["samples"], "random": snapshot["random"]}
    if isinstance(table, StepTable):
        figures["first"] = save_steps(folder, index, table, snapshot["below"], files, _save_array, _entry, CHUNK_BYTES)
    return {"name": table.name, "identity": _identity(table), **figures, "files": files}


def _save_items(
    folder: Path, index: int, table: ReplayTable, snapshot: dict[str, Any], files: dict[str, Any]
) -> np.ndarray:
    """The items' bytes, leaf by leaf, oldest first; the rows that were overwritten meanwhile."""
    keys, rows = snapshot["keys"], snapshot["rows"]
    leaves = _stored(table).leaves
    paths = [folder / f"{index}.leaf.{i}" for i in range(len(leaves))]
    handles = [open(path, "wb") for path in paths]  # noqa: SIM115  (closed below, all of them)
    crcs, kept, gone = [0] * len(leaves), 0, [np.empty(0, np.uint32)]
    try:
        step = max(1, CHUNK_BYTES // max(1, table.spec.sample_bytes)) if snapshot["batch"] is None else len(keys)
        for start in range(0, len(keys), step):
            part = slice(start, start + step)
            if snapshot["batch"] is None:
                batch, here = table.peek(keys[part])
            else:
                batch, here = snapshot["batch"], np.ones(len(keys), np.bool_)
            gone.append(rows[part][~here])
            kept += int(here.sum())
            for i, (array, handle) in enumerate(zip(optree.tree_leaves(batch, namespace=table.spec.namespace), handles)):
                data = np.ascontiguousarray(array if here.all() else array[here]).reshape(-1).view(np.uint8)
                handle.write(data)  # type: ignore[arg-type]
                crcs[i] = zlib.crc32(data, crcs[i])
        for handle in handles:
            handle.flush()
            os.fsync(handle.fileno())
    finally:
        for handle in handles:
            handle.close()
    for i, (leaf, path, crc) in enumerate(zip(leaves, paths, crcs)):
        files[f"leaf/{i}"] = _entry(path, leaf.dtype, (kept, *leaf.shape), crc)
    return np.concatenate(gone)


def _load_table(folder: Path, table: ReplayTable, described: dict[str, Any]) -> None:
    files = described["files"]
    snapshot: dict[str, Any] = {name: described[name] for name in ("inserts", "samples", "random")}
    for column in COLUMNS:
        snapshot[column] = _load_array(folder, files, column)
    for part in ("sampler", "remover"):
        snapshot[part] = {name.partition("/")[2]: _load_array(folder, files, name) for name in files if name.startswith(f"{part}/")}
    leaves = [_load_array(folder, files, f"leaf/{i}") for i in range(len(_stored(table).leaves))]
    if isinstance(table, StepTable):
        load_steps(table, snapshot, leaves[0], described["first"], lambda name: _load_array(folder, files, name))
        return
    table.restore_snapshot(snapshot, leaves, _load_array(folder, files, "gone"))


def _save_array(path: Path, array: np.ndarray) -> dict[str, Any]:
    data = np.ascontiguousarray(array)
    flat = data.reshape(-1).view(np.uint8)
    _write(path, flat)
    return _entry(path, data.dtype, array.shape, zlib.crc32(flat))


def _entry(path: Path, dtype: Any, shape: tuple[int, ...], crc: int) -> dict[str, Any]:
    return {"file": path.name, "dtype": dtype_to_json(np.dtype(dtype)), "shape": list(shape), "crc32": crc}


def _load_array(folder: Path, files: dict[str, Any], name: str) -> np.ndarray:
    try:
        entry = files[name]
        path = folder / str(entry["file"])
        dtype, shape = dtype_from_json(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / 'manifest.json'} does not describe {name!r} ({error!r}); take an older checkpoint") from error
    try:
        found = path.stat().st_size
        if found != size:
            raise CheckpointError(f"{path} is truncated or was changed: {found} bytes, not {size}; take an older checkpoint")
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; take an older checkpoint") from error
    if (crc := zlib.crc32(data)) != entry["crc32"]:
        raise CheckpointError(f"{path} is corrupted: its CRC-32 is {crc:08x}, not {entry['crc32']:08x}; take an older checkpoint")
    return data.view(dtype).reshape(shape) if size else np.empty(shape, dtype)


def _write(path: Path, data: Any) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Replay tables on disk: written while the server runs, whole or not at all, and checked when read.

    path/LATEST             the name of the newest checkpoint and its manifest's CRC-32, replaced in one step when that is whole
    path/00000007/          one checkpoint
        manifest.json       what there is: tables, specs, limiters, and every file with its dtype, shape and CRC-32
        0.keys, 0.leaf.0, … arrays, little-endian, as they lie in memory

Nothing is pickled. A table is paused only while its sampler's state and its index are copied. The items' bytes follow with writers running;
a writer that comes to an item before the checkpoint does first puts its bytes aside, so that all are those of the moment of the pause.
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

from . import table_state
from .dtypes import dtype_from_json, dtype_to_json
from .errors import CheckpointError
from .step_checkpoint import identity, load_steps, save_steps
from .step_table import StepTable

if TYPE_CHECKING:
    from .replay_table import ReplayTable

__all__ = ["load", "save"]

FORMAT = 2
CHUNK_BYTES = 8 << 20  # of items, copied and written at once
COLUMNS = ("keys", "rows", "loaned", "generations", "high", "times", "versions")
FIGURES = ("inserts", "samples", "policy_version", "random")


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
        described = {str(table["name"]): dict(table) for table in manifest["tables"]}
        number = manifest["format"]
    except CheckpointError:
        raise
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
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
        "policy versions": None if table.lags is None else dataclasses.asdict(table.lags),
        "lease": table.lease_timeout is not None,
        "sampler": _plugin(table.sampler),
        "remover": None if table.remover is None else _plugin(table.remover),
        **(identity(table) if isinstance(table, StepTable) else {}),
    }


def _plugin(sampler: Any) -> list[Any]:
    options = dataclasses.asdict(sampler.options) if dataclasses.is_dataclass(type(sampler.options)) else {}
    return [type(sampler).__name__, json.loads(json.dumps(options, default=repr))]


def _compare(folder: Path, table: ReplayTable, described: dict[str, Any]) -> None:
    mine, theirs = _identity(table), described.get("identity")
    if not isinstance(theirs, dict):
        raise CheckpointError(f"{folder / 'manifest.json'} does not say what table {table.name!r} is; take an older checkpoint")
    for what, value in json.loads(json.dumps(mine)).items():
        if theirs.get(what) == value:
            continue
        if what == "spec":
            other = type(table.spec).from_json(theirs.get("spec"))
            detail = table.spec.difference(other, "here", "in the checkpoint") or "they differ"
        else:
            detail = f"{theirs.get(what)} in the checkpoint, {value} here"
        raise CheckpointError(f"{folder}: table {table.name!r} has another {what}: {detail}; restore with the same, or start afresh")


def _save_table(folder: Path, index: int, table: ReplayTable) -> dict[str, Any]:
    snapshot = table_state.snapshot(table)
    files: dict[str, Any] = {}
    # First, as writers may have to wait for what they put aside.
    stored = _save_items(folder, index, table, snapshot["rows"], files)
    files["stored"] = _save_array(folder / f"{index}.stored", stored)
    for column in COLUMNS:
        files[column] = _save_array(folder / f"{index}.{column}", snapshot[column])
    for part in ("sampler", "remover"):
        for key, array in snapshot[part].items():
            files[f"{part}/{key}"] = _save_array(folder / f"{index}.{part}.{len(files)}", np.asarray(array))
    more = {}
    if isinstance(table, StepTable):
        table.flush()
        more["first"] = save_steps(folder, index, table, snapshot["below"], files, _save_array, _entry, CHUNK_BYTES)
    return {"name": table.name, "identity": _identity(table), **{name: snapshot[name] for name in FIGURES}, **more, "files": files}


def _save_items(folder: Path, index: int, table: ReplayTable, rows: np.ndarray, files: dict[str, Any]) -> np.ndarray:
    """The bytes of the items in `rows`; the rows in the order in which they were written."""
    leaves = table.rows_spec.leaves
    paths = [folder / f"{index}.leaf.{i}" for i in range(len(leaves))]
    handles = [open(path, "wb") for path in paths]  # noqa: SIM115  (closed below, all of them)
    crcs, stored = [0] * len(leaves), [np.empty(0, np.uint32)]
    step = max(1, CHUNK_BYTES // max(1, table.rows_spec.sample_bytes))
    try:
        for written, arrays in table_state.copies(table, rows, step):
            stored.append(written)
            for i, (array, handle) in enumerate(zip(arrays, handles)):
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                handle.write(data)  # type: ignore[arg-type]
                crcs[i] = zlib.crc32(data, crcs[i])
        for handle in handles:
            handle.flush()
            os.fsync(handle.fileno())
    finally:
        for handle in handles:
            handle.close()
    for i, (leaf, path, crc) in enumerate(zip(leaves, paths, crcs)):
        files[f"leaf/{i}"] = _entry(path, leaf.dtype, (len(rows), *leaf.shape), crc)
    return np.concatenate(stored)


def _load_table(folder: Path, table: ReplayTable, described: dict[str, Any]) -> None:
    try:
        files = dict(described["files"])
        snapshot: dict[str, Any] = {name: described[name] for name in FIGURES}
        for column in COLUMNS:
            snapshot[column] = _load_array(folder, files, column)
        for part in ("sampler", "remover"):
            snapshot[part] = {name.partition("/")[2]: _load_array(folder, files, name) for name in files if name.startswith(f"{part}/")}
        leaves = [_load_array(folder, files, f"leaf/{i}") for i in range(len(table.rows_spec.leaves))]
        stored = _load_array(folder, files, "stored")
        _check(table, snapshot, stored, leaves)
        table_state.restore(table, snapshot, stored, leaves)
        if isinstance(table, StepTable):
            load_steps(table, described["first"], stored, leaves[0], lambda name: _load_array(folder, files, name))
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        manifest = folder / "manifest.json"
        raise CheckpointError(f"{manifest} does not describe table {table.name!r} ({error!r}); take an older checkpoint") from error


def _check(table: ReplayTable, snapshot: dict[str, Any], stored: np.ndarray, leaves: list[np.ndarray]) -> None:
    """What is to be copied by row must fit the table: a checksum tells accidents, not what somebody wrote on purpose. ValueError if not."""
    rows, loaned, capacity = snapshot["rows"], snapshot["loaned"], table.capacity
    lists = [("rows", rows, rows.size), ("stored", stored, stored.size), ("loaned", loaned, loaned.size)]
    for name, array, size in lists + [(name, snapshot[name], capacity) for name in ("generations", "high", "times")]:
        if array.dtype != np.uint32 or array.shape != (size,):
            raise ValueError(f"{name} are {array.dtype}{list(array.shape)}, not uint32[{size}]")
    if (versions := snapshot["versions"]).dtype != np.uint64 or versions.shape != (capacity,):
        raise ValueError(f"versions are {versions.dtype}{list(versions.shape)}, not uint64[{capacity}]")
    if len(np.unique(rows)) != len(rows) or (rows >= capacity).any():
        raise ValueError(f"rows are not different numbers below {capacity}")
    if not np.array_equal(np.sort(stored), np.sort(rows)):
        raise ValueError("stored are not the rows in another order")
    if len(np.unique(loaned)) != len(loaned) or not np.isin(loaned, rows).all():
        raise ValueError("loaned are not some of the rows")
    for i, (leaf, array) in enumerate(zip(table.rows_spec.leaves, leaves)):
        if array.dtype != leaf.dtype or array.shape != (len(stored), *leaf.shape):
            raise ValueError(f"leaf/{i} is {array.dtype}{list(array.shape)}, not {leaf.dtype}{[len(stored), *leaf.shape]}")
    for name in ("inserts", "samples", "policy_version"):
        if type(snapshot[name]) is not int or not 0 <= snapshot[name] < 1 << 63:
            raise ValueError(f"{name} is {snapshot[name]!r}, not a number from 0 to 2**63 - 1")


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
        path = folder / entry["file"]
        if path.parent != folder or type(entry["crc32"]) is not int:
            raise ValueError(f"file {entry['file']!r}, crc32 {entry['crc32']!r}")
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

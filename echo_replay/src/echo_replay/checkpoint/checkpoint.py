"""Replay tables on disk. A checkpoint is written while the server runs, becomes visible only when it is complete, and is checked when read.

    path/LATEST             the name of the newest checkpoint and the CRC-32 of its manifest; replaced in one step when that is complete
    path/00000007/          one checkpoint
        manifest.json       tables, specs, limiters, and every file with its dtype, shape and CRC-32
        0.keys, 0.leaf.0, … arrays, little-endian, as they are in memory

Nothing is pickled. A table is paused only while its sampler's state and its index are copied. The items' bytes are copied afterwards, while
writers run. If a writer changes an item before it is copied, the writer puts the old bytes aside first. So all bytes are those of the moment
of the pause.

A checkpoint that is being written is in path/.echo-writing-*, a folder that is renamed when it is complete. Nothing else in `path` is touched.
A writer holds an exclusive lock on `path` while it replaces the newest checkpoint. A reader holds a shared lock on the folder of its checkpoint,
and writers do not remove such a folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echo_core.base.errors import CheckpointError
from echo_core.base.writing import writing
from echo_core.spec.dtypes import dtype_from_json, dtype_to_json

from ..steps.step_table import StepTable
from ..tables.records.record_table import RecordTable
from . import table_snapshot
from .files import Output, locked
from .other_capacity import fitted
from .step_checkpoint import identity, read_steps, save_steps

if TYPE_CHECKING:
    from ..tables.replay_table import ReplayTable

__all__ = ["load", "save"]

FORMAT = 2
CHUNK_BYTES = 8 << 20  # bytes of items that are copied and written at once
MAPPED_BYTES = 64 << 20  # files of at least this size are mapped
COLUMNS = ("keys", "rows", "loaned", "generations", "high", "times", "versions")
LIMITS = ("samples_per_insert", "min_diff", "max_diff", "min_size_to_sample")  # of a rate limiter
RECORDS = ("lengths", "bytes", "waiting")
FIGURES = ("inserts", "samples", "policy_version", "random")
WRITING = ".echo-writing-"  # the names of folders that are not complete yet begin with this
LOCK, MANIFEST = "lock", "manifest.json"
OURS = b'{"format": '  # our manifests begin with this


_log = logging.getLogger("echo")


class Saved(NamedTuple):
    """The contents of a table in a checkpoint."""

    snapshot: dict[str, Any]
    stored: np.ndarray
    leaves: list[np.ndarray]
    first: int  # number of the first step whose bytes are complete; see step_checkpoint.py
    steps: tuple[dict[str, np.ndarray], list[np.ndarray]] | None
    records: tuple[np.ndarray, ...] | None = None  # RECORDS, as RecordTable.below returned them


def save(tables: Mapping[str, ReplayTable], path: str | os.PathLike[str]) -> Path:
    """Write a checkpoint of `tables` into the directory `path`. The previous checkpoint is removed once this one is complete.

    Returns:
        The directory of this checkpoint.

    Raises:
        FileWriteError: the disk is full or not writable; the message names the file. CheckpointError: the rows that were stored are not
            those of the table, which is a defect of Echo. In both cases the previous checkpoint is unchanged.
    """
    with _alone(tables):
        return _save(tables, Path(path))


def _save(tables: Mapping[str, ReplayTable], root: Path) -> Path:
    before = _latest(root)
    older = _older(root)
    with writing(root, older):
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(f"{WRITING}*"):
            _sweep(left)
        folder, lock = _begin(root)
    try:
        with writing(root, older):
            described = [_save_table(folder, index, table) for index, table in enumerate(tables.values())]
            manifest = json.dumps({"format": FORMAT, "tables": described}).encode()
            _write(folder / MANIFEST, manifest)
            with locked(root, exclusive=True):
                if _latest(root) != before:
                    _log.warning("somebody else checkpoints into %s too, and each removes what the other wrote; give each learner a folder of its own", root)
                return _publish(root, folder, manifest)
    except BaseException:
        _remove(folder, LOCK)
        raise
    finally:
        lock.close()


def _publish(root: Path, folder: Path, manifest: bytes) -> Path:
    """Make the checkpoint in `folder`, which is complete, the newest one of `root`, and remove the others. Returns its place."""
    number = 1 + max((int(old.name) for old in _ours(root)), default=0)
    while os.path.lexists(final := root / f"{number:08d}"):  # another program made it
        number += 1
    # This comes before the folder gets its name: after that, nothing needs more room on the disk.
    _write(folder / "LATEST", f"{final.name} {zlib.crc32(manifest):08x}\n".encode())
    _sync(folder)
    folder.rename(final)
    _sync(root)
    (final / "LATEST").rename(root / "LATEST")
    _sync(root)
    (final / LOCK).unlink(missing_ok=True)
    for old in _ours(root):
        if int(old.name) < number:
            with contextlib.suppress(OSError), locked(old, exclusive=True, wait=False) as unread:
                if unread:  # otherwise the next checkpoint removes it
                    _remove(old, MANIFEST)
    return final


def load(tables: Mapping[str, ReplayTable], path: str | os.PathLike[str]) -> None:
    """Fill new `tables` from the newest checkpoint in `path`, which may also be the directory of that checkpoint, as `save` returned it.

    Raises:
        CheckpointError: there is no checkpoint; or a file is missing, truncated or corrupted; or the table, spec, sampler, limiter, capacity
            or max_times_sampled has changed since; or a table was written to already. The text names the cause.
            A sampler may raise other errors. In every case nothing was changed.
    """
    with _alone(tables):
        _load_newest(tables, Path(path))


@contextlib.contextmanager
def _alone(tables: Mapping[str, ReplayTable]) -> Iterator[None]:
    """Nobody else in this process writes or reads a checkpoint of these tables meanwhile."""
    with contextlib.ExitStack() as held:
        for table in tables.values():
            held.enter_context(table.checkpointing)
        yield


def _load_newest(tables: Mapping[str, ReplayTable], root: Path) -> None:
    asked = ""
    if re.fullmatch("[0-9]{8}", root.name) and not (root / "LATEST").exists() and (root.parent / "LATEST").exists():
        root, asked = root.parent, root.name
    while True:
        newest = _newest(root)
        if asked not in ("", newest[0].name):
            raise CheckpointError(f"{root / asked} is not the newest checkpoint, which is {newest[0]}; restore from {root}")
        try:
            return _load(tables, *newest)
        except CheckpointError:
            if _newest(root) == newest:
                raise
            # A learner has replaced this checkpoint by a newer one, and nothing was changed yet.


def _latest(root: Path) -> bytes:
    """The contents of LATEST, or no bytes."""
    with contextlib.suppress(OSError):
        return (root / "LATEST").read_bytes()
    return b""


def _newest(root: Path) -> tuple[Path, int]:
    """The folder of the newest checkpoint, and the checksum of its manifest."""
    try:
        name, crc = (root / "LATEST").read_text().split()
        return root / str(int(name)).zfill(8), int(crc, 16)
    except OSError as error:
        raise CheckpointError(f"{root} holds no whole checkpoint: {error}") from error
    except ValueError:  # its text would show what the file contains
        raise CheckpointError(f"{root} holds no whole checkpoint: {root / 'LATEST'} is not the name and the checksum of one") from None


def _older(root: Path) -> str:
    """Which checkpoint stays if the next one fails, for the message."""
    try:
        return f"the checkpoint {_newest(root)[0]} is still whole"
    except CheckpointError:
        return f"there is no older checkpoint in {root}"


def _load(tables: Mapping[str, ReplayTable], folder: Path, expected: int) -> None:
    with contextlib.ExitStack() as reading:
        with contextlib.suppress(OSError):  # if the folder is gone, reading its manifest says so
            reading.enter_context(locked(folder, exclusive=False))
        _load_locked(tables, folder, expected)


def _load_locked(tables: Mapping[str, ReplayTable], folder: Path, expected: int) -> None:
    try:
        text = (folder / MANIFEST).read_bytes()
        if zlib.crc32(text) != expected:
            raise CheckpointError(f"{folder / 'manifest.json'} is truncated or corrupted; take an older checkpoint")
        manifest = json.loads(text)
        described = {str(table["name"]): dict(table) for table in manifest["tables"]}
        number = manifest["format"]
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{folder / 'manifest.json'} cannot be read: {error.strerror}; take an older checkpoint") from error
    except (KeyError, AttributeError, TypeError, ValueError, RecursionError) as error:  # the text of some shows what the file contains
        raise CheckpointError(f"{folder / 'manifest.json'} is not the description of a checkpoint ({type(error).__name__}); take an older one") from None
    if number != FORMAT:
        raise CheckpointError(f"{folder} has format {number}, this echo-core reads {FORMAT}")
    if set(described) != set(tables):
        raise CheckpointError(f"{folder} has the tables {sorted(described)}, this server {sorted(tables)}; give it the same")
    for name, table in tables.items():
        with _naming(folder, table):
            _compare(folder, table, described[name])
    # Everything is read and checked before anything is changed. This needs no additional memory: the rows of new tables take none until they
    # are filled, and the data read for a table is freed when the table has it.
    read = [(table, _read_table(folder, table, described[name])) for name, table in tables.items()]
    with contextlib.ExitStack() as undo:
        for table, saved in read:
            with _naming(folder, table):
                before = table_snapshot.restore_samplers(table, saved.snapshot)
            undo.callback(table_snapshot.restore_samplers, table, before)
        undo.pop_all()
    while read:
        table, saved = read.pop(0)
        table_snapshot.restore(table, saved.snapshot, saved.stored, saved.leaves)
        if isinstance(table, StepTable) and saved.steps is not None:
            columns, leaves = saved.steps
            table.restore_steps(columns, saved.stored, saved.leaves[0], leaves, saved.first)
        if isinstance(table, RecordTable) and saved.records is not None:
            table.restore_records(saved.snapshot["rows"], saved.snapshot["loaned"], *saved.records)


def _begin(root: Path) -> tuple[Path, IO[bytes]]:
    """Make a folder to write into, and a lock that keeps other processes from removing it until the lock is closed.

    The folder is not named by our pid, which in a container is the same after each restart. A pid without a process does not prove that a
    writer is gone either, because other machines may write here. A lock, however, disappears with its process. If the file system has no
    locks, no process gets one to remove folders either.
    """
    while True:
        folder = root / f"{WRITING}{secrets.token_hex(8)}"
        folder.mkdir()
        try:
            lock = open(folder / LOCK, "wb")  # noqa: SIM115  (the caller closes it)
        except FileNotFoundError:
            continue  # another process removed it before it had a lock
        except OSError:
            folder.rmdir()
            raise
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / LOCK).exists():
            return folder, lock
        lock.close()  # another process locked it first and removed its contents


def _sweep(folder: Path) -> None:
    """Remove what a killed process was writing, but not what a process is still writing."""
    try:
        with open(folder / LOCK, "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder, LOCK)
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            folder.rmdir()  # the process was killed before it made a lock, so the folder is empty
    except OSError:
        pass


def _remove(folder: Path, mark: str) -> None:
    """Remove a folder of ours as far as possible, and its mark last: if we are killed meanwhile, the rest is still known as ours."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name == mark:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        (folder / mark).unlink(missing_ok=True)
        folder.rmdir()


def _ours(root: Path) -> Iterator[Path]:
    """Yield the checkpoints in a directory, which may contain other things too, whatever their names are."""
    for folder in list(root.iterdir()):
        if not re.fullmatch("[0-9]{8}", folder.name) or folder.is_symlink():
            continue
        with contextlib.suppress(OSError), open(folder / MANIFEST, "rb") as manifest:
            if manifest.read(len(OURS)) == OURS:
                yield folder


def _identity(table: ReplayTable) -> dict[str, Any]:
    """Return what a checkpoint and its table must have in common, with names that users know."""
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


def _of_any_capacity(identity: dict[str, Any]) -> dict[str, Any]:
    """The identity of a table whose items go into one of another capacity, too."""
    made = {what: value for what, value in identity.items() if what != "capacity"}
    for part in ("sampler", "remover"):
        if made.get(part) is not None:
            name, options = made[part]
            made[part] = [name, {option: value for option, value in options.items() if option != "capacity"}]
    return made


def _plugin(sampler: Any) -> list[Any]:
    options = dataclasses.asdict(sampler.options) if dataclasses.is_dataclass(type(sampler.options)) else {}
    return [type(sampler).__name__, json.loads(json.dumps(options, default=repr))]


def _compare(folder: Path, table: ReplayTable, described: dict[str, Any]) -> None:
    mine, theirs = _identity(table), described.get("identity")
    if not isinstance(theirs, dict):
        raise CheckpointError(f"{folder / 'manifest.json'} does not say what table {table.name!r} is; take an older checkpoint")
    mine = json.loads(json.dumps(mine))
    if isinstance(table, RecordTable):
        mine, theirs = _of_any_capacity(mine), _of_any_capacity(theirs)
    for what, value in mine.items():
        if theirs.get(what) == value:
            continue
        if what == "spec":
            other = type(table.spec).from_json(theirs.get("spec"))
            detail = table.spec.difference(other, "here", "in the checkpoint") or "they differ"
        elif what == "rate limiter" and isinstance(theirs.get(what), list):
            named = zip(LIMITS, theirs[what], value)
            detail = "; ".join(f"{name} is {other} in the checkpoint, and {own} here" for name, other, own in named if other != own)
        else:
            detail = f"{theirs.get(what)} in the checkpoint, {value} here"
        raise CheckpointError(f"{folder}: table {table.name!r} has another {what}: {detail}; restore with the same, or start afresh")


def _save_table(folder: Path, index: int, table: ReplayTable) -> dict[str, Any]:
    files: dict[str, Any] = {}
    try:
        snapshot = table_snapshot.snapshot(table)
        # This comes first, because writers may have to wait until the rows that they put aside are taken.
        stored = _save_items(folder, index, table, snapshot["rows"], files)
    finally:
        table_snapshot.end_copies(table)
    rows, seen = snapshot["rows"], np.zeros(table.capacity, np.bool_)
    seen[stored] = True
    if len(stored) != len(rows) or not seen[rows].all():
        raise CheckpointError(f"table {table.name!r}: the {len(stored)} rows that were stored are not the {len(rows)} rows of the table; please report this")
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
    if isinstance(table, RecordTable):
        for column, array in snapshot["below"].items():
            files[f"records/{column}"] = _save_array(folder / f"{index}.records.{column}", array)
    return {"name": table.name, "identity": _identity(table), **{name: snapshot[name] for name in FIGURES}, **more, "files": files}


def _save_items(folder: Path, index: int, table: ReplayTable, rows: np.ndarray, files: dict[str, Any]) -> np.ndarray:
    """Write the bytes of the items in `rows`; return the rows in the order in which they were written."""
    leaves = table.rows_spec.leaves
    paths = [folder / f"{index}.leaf.{i}" for i in range(len(leaves))]
    crcs, stored = [0] * len(leaves), [np.empty(0, np.uint32)]
    step = max(1, CHUNK_BYTES // max(1, table.rows_spec.sample_bytes))
    with contextlib.ExitStack() as opened:
        handles = [opened.enter_context(Output(open(path, "wb"))) for path in paths]  # noqa: SIM115
        for written, arrays in table_snapshot.copies(table, rows, step):
            stored.append(written)
            for i, (array, handle) in enumerate(zip(arrays, handles)):
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                handle.write(data)
                crcs[i] = zlib.crc32(data, crcs[i])
        for handle in handles:
            handle.finish()
    for i, (leaf, path, crc) in enumerate(zip(leaves, paths, crcs)):
        files[f"leaf/{i}"] = _entry(path, leaf.dtype, (len(rows), *leaf.shape), crc)
    return np.concatenate(stored)


def _read_table(folder: Path, table: ReplayTable, described: dict[str, Any]) -> Saved:
    """Read and check a table's part of a checkpoint. Only the states of the samplers are left: those only the samplers can check."""
    if table.counters()["inserts"] or (isinstance(table, StepTable) and table.stats()["steps"]):  # this is not the checkpoint's fault
        raise CheckpointError(f"table {table.name!r} was written to already; restore into a new server")
    with _naming(folder, table):
        files = dict(described["files"])
        snapshot: dict[str, Any] = {name: described[name] for name in FIGURES}
        for column in COLUMNS:
            snapshot[column] = _load_array(folder, files, column)
        for part in ("sampler", "remover"):
            snapshot[part] = {name.partition("/")[2]: _load_array(folder, files, name) for name in files if name.startswith(f"{part}/")}
        leaves = [_load_array(folder, files, f"leaf/{i}") for i in range(len(table.rows_spec.leaves))]
        stored = _load_array(folder, files, "stored")
        saved = described["identity"]["capacity"]
        if type(saved) is not int or not 1 <= saved < 1 << 31:
            raise ValueError(f"the capacity is {saved!r}")
        _check(table, snapshot, stored, leaves, saved)
        if saved != table.capacity:
            snapshot, stored = fitted(table, snapshot, stored, saved)
        table_snapshot.check(table, snapshot)
        if isinstance(table, RecordTable):
            records = tuple(_load_array(folder, files, f"records/{column}") for column in RECORDS)
            if len(records[0]) != len(snapshot["rows"]):
                raise ValueError(f"{len(records[0])} records of {len(snapshot['rows'])} items")
            table.check_records(*records)
            return Saved(snapshot, stored, leaves, 0, None, records)
        if not isinstance(table, StepTable):
            return Saved(snapshot, stored, leaves, 0, None)
        first = described["first"]
        return Saved(snapshot, stored, leaves, first, read_steps(table, first, lambda name: _load_array(folder, files, name)))


@contextlib.contextmanager
def _naming(folder: Path, table: ReplayTable) -> Iterator[None]:
    """Errors in a table's part of the manifest are raised with the table's name."""
    try:
        yield
    except CheckpointError:
        raise
    except (KeyError, IndexError, AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        manifest = folder / MANIFEST
        raise CheckpointError(f"{manifest} does not describe table {table.name!r} ({error!r}); take an older checkpoint") from error


def _check(table: ReplayTable, snapshot: dict[str, Any], stored: np.ndarray, leaves: list[np.ndarray], capacity: int) -> None:
    """Raise ValueError unless the data fits a table of this capacity: a checksum detects accidents, but not what somebody changed on purpose."""
    rows, loaned = snapshot["rows"], snapshot["loaned"]
    lists = [("rows", rows, rows.size), ("stored", stored, stored.size), ("loaned", loaned, loaned.size)]
    for name, array, size in lists + [(name, snapshot[name], capacity) for name in ("generations", "high", "times")]:
        if array.dtype != np.uint32 or array.shape != (size,):
            raise ValueError(f"{name} are {array.dtype}{list(array.shape)}, not uint32[{size}]")
    if (versions := snapshot["versions"]).dtype != np.uint64 or versions.shape != (capacity,):
        raise ValueError(f"versions are {versions.dtype}{list(versions.shape)}, not uint64[{capacity}]")
    if len(np.unique(rows)) != len(rows) or (rows >= capacity).any():
        raise ValueError(f"rows must be different numbers below {capacity}")
    if not np.array_equal(np.sort(stored), np.sort(rows)):
        raise ValueError("stored does not have the same rows as rows")
    if len(np.unique(loaned)) != len(loaned) or not np.isin(loaned, rows).all():
        raise ValueError("loaned has rows that the table does not have")
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
        # A large file is not read into memory as a whole: a table with a storage path may be larger than the memory.
        data = np.fromfile(path, np.uint8) if size < MAPPED_BYTES else np.memmap(path, np.uint8, "c")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; take an older checkpoint") from error
    if (crc := zlib.crc32(data)) != entry["crc32"]:
        raise CheckpointError(f"{path} is corrupted: its CRC-32 is {crc:08x}, not {entry['crc32']:08x}; take an older checkpoint")
    return data.view(dtype).reshape(shape) if size else np.empty(shape, dtype)


def _write(path: Path, data: Any) -> None:
    with Output(open(path, "wb")) as file:
        file.write(data)
        file.finish()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

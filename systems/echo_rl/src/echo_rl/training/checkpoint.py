"""A checkpoint: one file with arrays and numbers, without pickle, which is replaced as a whole."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from echo_core import ConfigError

__all__ = ["read_checkpoint", "write_checkpoint"]

FORMAT = "echo-rl checkpoint 1"


def write_checkpoint(path: str | os.PathLike[str], state: Any) -> None:
    """Write nested mappings, lists, numbers, texts, arrays and tensors. A reader of the path finds the old file or the whole new one.

    Raises TypeError, which says where, for anything else.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    values = json.dumps({"format": FORMAT, "state": _put_apart(state, arrays, "state")}, allow_nan=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            np.savez(file, values=np.frombuffer(values.encode(), np.uint8), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_checkpoint(path: str | os.PathLike[str]) -> Any:
    """Read what ``write_checkpoint`` wrote; arrays and tensors come back as such. Raises ConfigError if the file is not a checkpoint, or is damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        values = json.loads(arrays.pop("values").tobytes())
        if values.get("format") != FORMAT:
            raise ValueError(f"its format is {values.get('format')!r}, and this version reads {FORMAT!r}")
        return _put_back(values["state"], arrays)
    except OSError as error:
        raise ConfigError(f"{os.fspath(path)}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{os.fspath(path)}: is no checkpoint, or is damaged: {error}") from error


def _put_apart(value: Any, arrays: dict[str, np.ndarray[Any, Any]], where: str) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
        return {"tensor" if isinstance(value, torch.Tensor) else "array": name}
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"{where}: the key {wrong[0]!r} is no text")
        return {"table": {key: _put_apart(item, arrays, f"{where}.{key}") for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return [_put_apart(item, arrays, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{where}: a checkpoint cannot hold a {type(value).__name__}")


def _put_back(value: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, list):
        return [_put_back(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, item),) = value.items()
    if kind == "table":
        return {key: _put_back(one, arrays) for key, one in item.items()}
    return torch.from_numpy(arrays[item]) if kind == "tensor" else arrays[item]

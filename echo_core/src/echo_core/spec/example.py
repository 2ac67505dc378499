"""Examples for programs that have no code of their own: they are read from a TOML table, a .npz file, or `module:function`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import ConfigError, SpecError
from ..base.toml import parse_toml
from .dtypes import dtype_from_json

__all__ = ["from_table", "load"]

_LEAF = {"dtype", "shape"}
_HOW = 'a leaf is written { shape = [84, 84, 4], dtype = "uint8" }'


def from_table(table: Mapping[str, Any], where: str = "example") -> Any:
    """Make a pytree of zeros from nested tables. A table with a `dtype` that is text is a leaf.

        [example]
        obs = { shape = [4], dtype = "float32" }
        reward = { dtype = "float32" }              # no shape: a scalar
        next.obs = { shape = [4], dtype = "float32" }

    Raises:
        ConfigError: something is neither a leaf nor a table of leaves; the text names it.
    """
    if not isinstance(table, Mapping) or not table:
        raise ConfigError(f"{where}: must be a table with at least one leaf; {_HOW}")
    if not isinstance(table.get("dtype"), str):
        return {str(key): from_table(item, f"{where}.{key}") for key, item in table.items()}
    if unknown := set(table) - _LEAF:
        raise ConfigError(f"{where}.{sorted(unknown)[0]}: a leaf has a shape and a dtype, nothing else")
    shape = table.get("shape", [])
    if not isinstance(shape, (list, tuple)) or not all(type(n) is int and n >= 0 for n in shape):
        raise ConfigError(f"{where}.shape: must be a list of whole numbers, not {shape!r}; {_HOW}")
    try:
        dtype = _dtype(table["dtype"])
    except (TypeError, ValueError, SpecError) as error:
        raise ConfigError(f"{where}.dtype: numpy knows no dtype {table['dtype']!r}; {_HOW}") from error
    # Only shape and dtype matter: an example of any size takes the memory of one number.
    return np.broadcast_to(np.zeros((), dtype), tuple(shape))


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        return dtype_from_json(name)  # bfloat16 and similar names, which numpy alone does not know


def load(source: str) -> Any:
    """Return the example that `source` names.

    Args:
        source: `spec.toml` (its table `[example]`, or the whole file if it has none, as `from_table` reads it), `sample.npz` (one array for
            each leaf; `/` in a name nests), or `package.module:name`: the pytree, or a function without arguments that returns it.

    Raises:
        ConfigError: it cannot be read as any of these; the text says what was looked for.
    """
    path = Path(source).expanduser()
    if path.suffix == ".toml":
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{source}: cannot be read: {error.strerror}; check the path") from error
        table = parse_toml(data, source)
        return from_table(table.get("example", table), f"{source}: example")
    if path.suffix == ".npz":
        return _from_npz(path)
    module, colon, name = source.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"{source!r} is no example; give a .toml file, a .npz file, or package.module:function")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{source}: {error}; is it installed, or in the folder this runs in?") from error
    return found() if callable(found) else found


def _from_npz(path: Path) -> Any:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; make it with numpy.savez(path, obs=..., reward=...)") from error
    if not arrays:
        raise ConfigError(f"{path}: has no arrays; make it with numpy.savez(path, obs=..., reward=...)")
    root: dict[str, Any] = {}
    for name, array in arrays.items():
        *tables, leaf = name.split("/")
        place = root
        for table in tables:
            place = place.setdefault(table, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{path}: {name!r} lies within {table!r}, which is an array itself")
        if leaf in place:
            raise ConfigError(f"{path}: {name!r} is both an array and a table of arrays")
        place[leaf] = array
    return root

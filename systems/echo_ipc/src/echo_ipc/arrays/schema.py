"""The description of a value: the names, dtypes and shapes of its arrays, and where each lies.

A description is given as a mapping from names to `(shape, dtype)` or to an example (an array, a tensor, or anything else that has a
shape and a dtype). Mappings may be nested; `{"policy": {"w": ...}}` has an array named "policy/w". It is written into the shared memory as
JSON, so a process that attaches learns it from there, and one that expects another is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from echo_core.base.errors import SpecError, did_you_mean

from . import tensors

__all__ = ["Field", "Schema"]

CACHE_LINE = 64


@dataclass(frozen=True)
class Field:
    """One array of a value. `path`: the keys that lead to it; `offset`: in bytes from the beginning of the value."""

    path: tuple[str, ...]
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def name(self) -> str:
        return "/".join(self.path)

    @property
    def nbytes(self) -> int:
        return int(self.dtype.itemsize) * prod(self.shape)

    def text(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


class Schema:
    """The arrays of a value, in the order of their description.

    Attributes:
        fields: one for each array.
        nbytes: size of a value with its alignment, at least 1.
    """

    def __init__(self, fields: list[tuple[tuple[str, ...], np.dtype, tuple[int, ...]]], *, packed: bool = False) -> None:
        """`packed`: every array is aligned to its own elements only, as in a row of a table; otherwise to a cache line."""
        self.fields: list[Field] = []
        end, widest = 0, 1
        for path, dtype, shape in fields:
            alignment = min(dtype.itemsize & -dtype.itemsize, CACHE_LINE) or 1 if packed else CACHE_LINE
            widest = max(widest, alignment)
            field = Field(path, dtype, shape, -(-end // alignment) * alignment)
            self.fields.append(field)
            end = field.offset + field.nbytes
        self.nbytes = max(1, -(-end // widest) * widest)
        self.packed = packed
        self.names = [field.name for field in self.fields]
        self._is_flat = all(len(field.path) == 1 for field in self.fields)

    @classmethod
    def of(cls, description: Any, *, packed: bool = False) -> Schema:
        """From what a caller gives. Raises SpecError that names the entry that is no description."""
        if isinstance(description, Schema):
            return description
        if not isinstance(description, Mapping):
            raise SpecError(f"a schema must be a mapping from names to (shape, dtype) or to examples, not {type(description).__name__}")
        found: list[tuple[tuple[str, ...], np.dtype, tuple[int, ...]]] = []
        _collect(description, (), found)
        if not found:
            raise SpecError("a schema needs at least one entry")
        names = ["/".join(path) for path, _, _ in found]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SpecError(f"the name {twice!r} is there twice; a name with a slash is the same as nested names")
        return cls(found, packed=packed)

    @classmethod
    def from_json(cls, text: bytes) -> Schema:
        """Raises SpecError if the text is not what to_json() writes."""
        try:
            content = json.loads(text)
            fields = [(tuple(map(str, path)), _dtype_named(kind), tuple(int(n) for n in shape)) for path, kind, shape in content["fields"]]
            if any(n < 0 for _, _, shape in fields for n in shape):
                raise ValueError("a negative size")
            return cls(fields, packed=bool(content["packed"]))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise SpecError(f"the description in the shared memory cannot be read ({error}); install the same echo-ipc for all processes") from None

    def to_json(self) -> bytes:
        fields = [[list(field.path), _name_of(field.dtype), list(field.shape)] for field in self.fields]
        return json.dumps({"packed": self.packed, "fields": fields}, separators=(",", ":")).encode()

    def check_same(self, there: Schema, name: str) -> None:
        """Raise SpecError if the memory called `name` has another description than this one."""
        theirs = {field.name: field for field in there.fields}
        for field in self.fields:
            other = theirs.pop(field.name, None)
            if other is None:
                raise SpecError(f"{name} has no entry {field.name!r}{did_you_mean(field.name, there.names)}; it has {', '.join(there.names)}")
            if (other.dtype, other.shape) != (field.dtype, field.shape):
                raise SpecError(f"{field.name!r} of {name} is {other.text()}, but {field.text()} was expected; use the same description in all processes")
        if theirs:
            raise SpecError(f"{name} also has an entry {next(iter(theirs))!r}, which was not expected; use the same description in all processes")
        if [field.name for field in self.fields] != there.names:
            raise SpecError(f"{name} has the same entries in another order; use the same description in all processes")

    # ---- values

    def leaves(self, tree: Any) -> list[Any]:
        """The values of a tree, in the order of the fields. Raises SpecError that names an entry that is missing or too much."""
        if not isinstance(tree, Mapping):
            raise SpecError(f"a value must be a mapping like its schema, not {type(tree).__name__}")
        try:
            if self._is_flat and len(tree) == len(self.names):
                return [tree[name] for name in self.names]
            found = []
            for field in self.fields:
                value: Any = tree
                for key in field.path:
                    value = value[key]
                found.append(value)
        except (LookupError, TypeError):
            raise SpecError(self._missing(tree)) from None
        if _count(tree, self.depth) != len(self.fields):
            raise SpecError(self._surplus(tree))
        return found

    @property
    def depth(self) -> int:
        return max(len(field.path) for field in self.fields)

    def tree(self, leaves: list[Any]) -> dict[str, Any]:
        """The opposite of leaves()."""
        result: dict[str, Any] = {}
        for field, leaf in zip(self.fields, leaves):
            place = result
            for key in field.path[:-1]:
                place = place.setdefault(key, {})
            place[field.path[-1]] = leaf
        return result

    def unfit(self, index: int, array: np.ndarray, rows: bool = False) -> SpecError | None:
        """Why an array is not what the field says; None if only its order in memory differs."""
        field = self.fields[index]
        shape = array.shape[1:] if rows else array.shape
        if rows and array.ndim == 0:
            return SpecError(f"{field.name!r} has no rows: it is {array.dtype.name}[], but {field.text()} for each row is needed")
        if shape != field.shape or array.dtype.newbyteorder("=") != field.dtype:
            what = "rows of " if rows else ""
            return SpecError(f"{field.name!r} must be {what}{field.text()}, but is {what}{array.dtype.name}{list(shape)}; convert it, or change the schema")
        return None

    def fitted(self, arrays: list[Any], index: int, rows: bool = False) -> np.ndarray:
        """What a native call shall copy instead of `arrays[index]`, which does not lie in memory as its field says. Raises SpecError if it is of another
        shape or dtype."""
        array = tensors.as_array(arrays[index])
        if array is not arrays[index]:
            return array  # it may fit now
        error = self.unfit(index, array, rows)
        if error is None and rows and len(array) != len(arrays[0]):
            error = SpecError(f"{self.names[index]!r} has {len(array)} rows, but {self.names[0]!r} has {len(arrays[0])}; all columns need the same")
        if error is not None:
            raise error
        return np.ascontiguousarray(array, self.fields[index].dtype).reshape(array.shape)

    def _missing(self, tree: Any) -> str:
        there = ["/".join(path) for path in _paths(tree, ())]
        name = next((name for name in self.names if name not in there), self.names[0])
        return f"there is no entry {name!r}{did_you_mean(name, there)}; the schema has {', '.join(self.names)}"

    def _surplus(self, tree: Any) -> str:
        name = next("/".join(path) for path in _paths(tree, ()) if "/".join(path) not in self.names)
        return f"the entry {name!r} is not in the schema{did_you_mean(name, self.names)}; the schema has {', '.join(self.names)}"


def _collect(description: Mapping[Any, Any], path: tuple[str, ...], found: list[tuple[tuple[str, ...], np.dtype, tuple[int, ...]]]) -> None:
    for key, value in description.items():
        here = (*path, str(key))
        if not isinstance(key, str):
            raise SpecError(f"the name {key!r} must be a string")
        if isinstance(value, Mapping):
            _collect(value, here, found)
        else:
            found.append((here, *_entry("/".join(here), value)))


def _entry(name: str, value: Any) -> tuple[np.dtype, tuple[int, ...]]:
    try:
        if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], str):
            shape = (int(value[0]),) if isinstance(value[0], int) else tuple(int(n) for n in value[0])
            dtype = _dtype_given(value[1])
        elif hasattr(value, "dtype") and hasattr(value, "shape"):
            shape, dtype = tuple(int(n) for n in value.shape), tensors.dtype_of(value)
        else:
            raise TypeError
    except (TypeError, ValueError, AttributeError):
        raise SpecError(f"{name!r} must be (shape, dtype), such as ((4, 84), 'float32'), or an example array, not {value!r:.80}") from None
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None or dtype.itemsize == 0:
        raise SpecError(f"{name!r} has the dtype {dtype}, which cannot be shared; use numbers, booleans or strings of fixed length")
    if any(n < 0 for n in shape):
        raise SpecError(f"{name!r} has a negative size: {shape}")
    return dtype.newbyteorder("="), shape


def _dtype_given(value: Any) -> np.dtype:
    if isinstance(value, str) and value == "bfloat16":
        return np.dtype(np.uint16)
    text = str(value)
    return np.dtype(_TORCH.get(text, text.removeprefix("torch."))) if text.startswith("torch.") else np.dtype(value)


_TORCH = {"torch.bfloat16": "uint16", "torch.half": "float16", "torch.float": "float32", "torch.double": "float64", "torch.long": "int64"}


def _name_of(dtype: np.dtype) -> str:
    return dtype.str if dtype.isbuiltin == 1 or dtype.kind != "V" else dtype.name


def _dtype_named(text: str) -> np.dtype:
    try:
        return np.dtype(text)
    except TypeError:
        import ml_dtypes  # the dtypes that numpy does not have are named

        found: np.dtype = np.dtype(getattr(ml_dtypes, text))
        return found


def _paths(tree: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    if not isinstance(tree, Mapping):
        return [path]
    return [found for key, value in tree.items() for found in _paths(value, (*path, str(key)))]


def _count(tree: Mapping[Any, Any], depth: int) -> int:
    if depth == 1:
        return len(tree)
    return sum(_count(value, depth - 1) if isinstance(value, Mapping) else 1 for value in tree.values())

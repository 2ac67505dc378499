"""Which dtypes Echo carries, and how a dtype is written as JSON.

Echo carries every dtype whose elements have one fixed size and mean the same in another process.
These are numbers, bool, complex, fixed-width strings and bytes, datetimes, raw void, and records
of these. The types of `ml_dtypes` (bfloat16, float8, int4, ...) are carried too. They travel by
name, because their `dtype.str` (`<V2`) does not say what they are.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..base.errors import SpecError

__all__ = ["dtype_from_json", "dtype_to_json", "kind_of", "native", "refusal"]

_PLAIN = re.compile(r"[<>|=]?[biufcmMSUV][0-9]{1,9}(\[[0-9a-zA-Zμ/]{1,24}\])?")
_MAX_FIELDS = 1024
_MAX_NESTING = 16


def native(dtype: np.dtype) -> np.dtype:
    """Return the same dtype in this machine's byte order.

    For numbers this is numpy's own singleton, because the fast path of `Flattener` compares
    dtypes by address before it compares them by value.
    """
    if not dtype.isnative:
        dtype = dtype.newbyteorder("=")
    if dtype.names is None and dtype.kind in "biufc":
        return np.dtype(dtype.type)
    if dtype.type is np.record:
        return np.dtype((np.void, dtype))
    return dtype


def kind_of(dtype: np.dtype) -> str:
    """Return `dtype.kind`, but "i" for unsigned integers too, and the right letter for ml_dtypes."""
    if dtype.isbuiltin == 2:
        name = dtype.name.lstrip("bu")
        for prefix, kind in (("int", "i"), ("complex", "c"), ("float", "f")):
            if name.startswith(prefix):
                return kind
        return "V"
    return {"u": "i"}.get(dtype.kind, dtype.kind)


def refusal(dtype: np.dtype) -> str | None:
    """Return why `dtype` cannot be carried, as the end of an error message; None if it can."""
    if dtype.names is not None:
        for name, field in _fields_of(dtype):
            if len(field) > 2:
                return f"field {name!r} has a title, which is not carried; remove the title"
            reason = refusal(field[0].base)
            if reason is not None:
                return f"field {name!r}: {reason}"
    elif dtype.hasobject:
        return (
            f"{dtype} elements have no fixed size in memory; give an array of numbers, or of "
            "fixed-width strings such as dtype='U16'"
        )
    elif dtype.kind in "SU" and dtype.itemsize == 0:
        return "strings of width 0 cannot be filled; give a width such as dtype='U16'"
    try:
        if dtype_from_json(dtype_to_json(dtype)) == dtype:
            return None
    except SpecError:
        pass
    return f"{dtype} cannot be named to another process; convert it to one of numpy's own dtypes"


def dtype_to_json(dtype: np.dtype) -> Any:
    """Return a string (`"<f4"`, `"bfloat16"`), or for records numpy's dict form
    `{"names", "formats", "offsets", "itemsize"}`, whose formats may be `[format, [dims]]`.

    Unlike `dtype.descr` this keeps padding, overlapping fields and ml_dtypes inside records.
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [dtype_to_json(base), list(shape)]
    if dtype.names is not None:
        fields = _fields_of(dtype)
        return {
            "names": [name for name, _ in fields],
            "formats": [dtype_to_json(field[0]) for _, field in fields],
            "offsets": [int(field[1]) for _, field in fields],
            "itemsize": dtype.itemsize,
        }
    return dtype.name if dtype.isbuiltin == 2 else dtype.str


def dtype_from_json(value: Any, depth: int = 0) -> np.dtype:
    """Do the inverse of `dtype_to_json`. The input is not trusted; raises SpecError."""
    try:
        if isinstance(value, str):
            return np.dtype(value) if _PLAIN.fullmatch(value) else _by_name(value)
        if depth < _MAX_NESTING:
            if isinstance(value, list):
                base, shape = value
                if all(type(n) is int and n >= 0 for n in shape):
                    return np.dtype((dtype_from_json(base, depth + 1), tuple(shape)))
            if isinstance(value, dict) and len(value["names"]) <= _MAX_FIELDS:
                formats = [dtype_from_json(part, depth + 1) for part in value["formats"]]
                return np.dtype(
                    {
                        "names": [str(name) for name in value["names"]],
                        "formats": formats,
                        "offsets": [int(offset) for offset in value["offsets"]],
                        "itemsize": int(value["itemsize"]),
                    }
                )
    except (TypeError, ValueError, KeyError, OverflowError, RuntimeError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{_short(value)} is not a dtype: {error}") from error
    raise SpecError(f"{_short(value)} is not a dtype Echo carries; see echo_core.spec.dtypes")


def _fields_of(record: np.dtype) -> list[tuple[str, Any]]:
    """Return name and `(dtype, offset[, title])` of every field, in the record's order."""
    fields: Any = record.fields
    return [(name, fields[name]) for name in record.names or ()]


def _by_name(name: str) -> np.dtype:
    try:
        import ml_dtypes
    except ImportError:
        raise SpecError(
            f"dtype {_short(name)} is not one of numpy's own; run: pip install ml_dtypes"
        ) from None
    scalar = getattr(ml_dtypes, name, None)
    if isinstance(scalar, type) and issubclass(scalar, np.generic):
        return np.dtype(scalar)
    raise SpecError(f"there is no dtype {_short(name)} in numpy or in the ml_dtypes installed here")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

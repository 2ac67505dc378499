"""The state of a search as bytes, without pickle: a tree of arrays, numbers, strings and bytes, and dataclasses by their fields.

The bytes are the length of the description (8 bytes, little-endian), the description, and the payload of `echo_core.wire.weights`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import typing
from typing import Any

import numpy as np

from echo_core import EchoError, SpecError
from echo_core.wire import weights

__all__ = ["check", "digest", "pack", "unpack"]

_HEAD = 8


def pack(state: Any) -> bytes:
    """The state as bytes. Raises SpecError with the name of a leaf that cannot travel."""
    packed = weights.pack(_plain(state), 0)
    return b"".join((len(packed.meta).to_bytes(_HEAD, "little"), packed.meta, packed.payload.data))


def unpack(data: Any, state_type: type | None = None) -> Any:
    """The state that was packed, with arrays that may be written to.

    Args:
        data: what `pack` returned, in any buffer.
        state_type: the dataclass that is rebuilt; None returns its fields as a dict.

    Raises SpecError if the bytes are damaged, or if the fields are not those of `state_type`.
    """
    return _rebuilt(_tree(data), state_type, "state")


def check(data: Any) -> None:
    """Raise SpecError if these bytes are not a state that `pack` returned. No array is copied."""
    _tree(data)


def _tree(data: Any) -> Any:
    """What was packed, with arrays in the memory of `data`."""
    view = memoryview(data)
    length = int.from_bytes(view[:_HEAD], "little")
    if len(view) < _HEAD or length > len(view) - _HEAD:
        raise SpecError(f"a state of {len(view)} bytes ends before its description does; it was cut off on the way")
    payload = np.frombuffer(view[_HEAD + length :], np.uint8)
    try:
        return weights.unpack(bytes(view[_HEAD : _HEAD + length]), payload).params
    except EchoError as error:
        raise SpecError(f"a state of {len(view)} bytes is damaged, or was not packed by echo-es: {error}") from error


def digest(data: Any) -> str:
    """16 hex digits that are equal for equal states, from what `pack` returned."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    """The value with a dict of its fields in the place of each dataclass."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if type(value) is dict:
        return {key: _plain(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(inner) for inner in value)
    return value


def _rebuilt(value: Any, wanted: Any, path: str) -> Any:
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return _dataclass(value, wanted, path)
    options = [option for option in typing.get_args(wanted) if option is not type(None)]
    origin = typing.get_origin(wanted)
    if value is not None and type(None) in typing.get_args(wanted) and len(options) == 1:  # Optional[...]
        return _rebuilt(value, options[0], path)
    if isinstance(value, dict):
        inner = options[1] if origin is dict else None
        return {key: _rebuilt(part, inner, f"{path}[{key!r}]") for key, part in value.items()}
    if isinstance(value, list | tuple):
        if origin is tuple and Ellipsis not in options and len(options) == len(value):
            kinds = options
        else:
            kinds = [options[0] if origin in (list, tuple) and options else None] * len(value)
        return type(value)(_rebuilt(part, kind, f"{path}[{number}]") for number, (part, kind) in enumerate(zip(value, kinds)))
    return value.copy() if isinstance(value, np.ndarray) else value


def _dataclass(value: Any, wanted: type, path: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(wanted)}
    if not isinstance(value, dict) or value.keys() != fields.keys():
        has = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
        raise SpecError(f"{path}: {wanted.__name__} has the fields {', '.join(fields)}, but the state that arrived has {has}; all workers need the same class")
    kinds = typing.get_type_hints(wanted)
    parts = {name: _rebuilt(value[name], kinds.get(name), f"{path}.{name}") for name in fields}
    made = wanted(**{name: part for name, part in parts.items() if fields[name].init})
    for name, part in parts.items():
        if not fields[name].init:
            object.__setattr__(made, name, part)
    return made

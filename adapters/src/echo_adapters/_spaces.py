"""Gymnasium's spaces as pytrees of arrays: an example of a space, and values of a space that are checked before they are sent.

A `Dict` space is a dict, a `Tuple` space is a tuple, and every other space is one array. Leaves are named as in error messages: `obs['camera'][0]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

__all__ = ["array", "exact", "structured", "zeros"]


def zeros(space: Any, name: str, shape: tuple[int, ...] = ()) -> Any:
    """Return zeros of the space, with `shape` in front of the shape of every leaf.

    Raises:
        TypeError: samples of the space, or of a part of it, have no fixed shape and dtype (`Text`, `Sequence`, `Graph`, `OneOf`).
    """
    if isinstance(space, spaces.Dict):
        return {key: zeros(part, f"{name}[{key!r}]", shape) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(zeros(part, f"{name}[{i}]", shape) for i, part in enumerate(space.spaces))
    if space.shape is None or space.dtype is None or np.dtype(space.dtype).kind not in "biufc":
        raise TypeError(
            f"{name} is a {type(space).__name__} space, whose samples vary in shape; Echo sends arrays of one shape. "
            "Wrap the environment so that this part becomes a Box of fixed shape (pad it), or leave it out"
        )
    return np.zeros((*shape, *space.shape), space.dtype)


def array(value: Any) -> np.ndarray:
    """Return the value as a numpy array: of anything that numpy takes, and of torch tensors on any device, with or without a gradient."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)


def structured(space: Any, value: Any, name: str) -> Any:
    """Return a copy of a batched value of the space, with plain dicts and tuples as nodes and numpy arrays as leaves.

    Raises:
        ValueError: the value has other parts than the space; the message names the part.
    """
    if isinstance(space, spaces.Dict):
        return {key: structured(part, value[key], f"{name}[{key!r}]") for key, part in _parts(space, value, name)}
    if isinstance(space, spaces.Tuple):
        return tuple(structured(part, value[i], f"{name}[{i}]") for i, part in _parts(space, value, name))
    return np.array(array(value))


def exact(space: Any, value: Any, count: int, name: str) -> Any:
    """Return a batched value of the space for `count` environments as a copy with the space's own dtypes. Floats are rounded to narrower floats.

    Raises:
        ValueError: the value has other parts or another shape than the space, or numbers that the space's dtype cannot hold; the message
            names the part.
    """
    if isinstance(space, spaces.Dict):
        return {key: exact(part, value[key], count, f"{name}[{key!r}]") for key, part in _parts(space, value, name)}
    if isinstance(space, spaces.Tuple):
        return tuple(exact(part, value[i], count, f"{name}[{i}]") for i, part in _parts(space, value, name))
    wanted = np.dtype(space.dtype)
    try:
        given = array(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is no array: {error}") from error
    if given.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers ({wanted}), not {given.dtype}")
    if given.shape != (count, *space.shape):
        raise ValueError(f"{name} must have shape {(count, *space.shape)}, one entry for each environment, not {given.shape}")
    with np.errstate(all="ignore"):
        taken = given.astype(wanted)
    lost = ~np.isfinite(taken) & np.isfinite(given) if wanted.kind == "f" else _differs(taken, given)
    if lost.any():
        raise ValueError(f"{name} holds {given[lost][0]!s}, which {wanted} cannot hold; give actions of the space {space}")
    return taken


def _differs(taken: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Where `taken`, which are whole numbers or booleans, are not the numbers that were given."""
    if given.dtype.kind != "f":
        # Comparisons of int64 with uint64 would pass through float64, so the sign is compared on its own.
        return np.asarray((taken.astype(given.dtype) != given) | ((taken < 0) != (given < 0)))
    # A float beyond 64 bits becomes any number, which may become the same float again: the range is checked too.
    low, high = (0, 1) if taken.dtype.kind == "b" else (np.iinfo(taken.dtype).min, np.iinfo(taken.dtype).max)
    wide = given.astype(np.float64)
    inside = (wide >= float(low)) & (wide < float(high) + (1 if high < 2**53 else 0))
    return np.asarray(~inside | (taken.astype(given.dtype) != given))


def _parts(space: Any, value: Any, name: str) -> list[tuple[Any, Any]]:
    """Return the keys and spaces of a `Dict` or `Tuple` space; raises ValueError unless the value has the same parts."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            has = sorted(map(str, value)) if isinstance(value, Mapping) else f"a {type(value).__name__}"
            raise ValueError(f"{name} must be a dict of batched arrays with the keys {sorted(map(str, space.spaces))}, not {has}")
        return list(space.spaces.items())
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(space.spaces):
        has = f"{len(value)} parts" if isinstance(value, Sequence) else f"a {type(value).__name__}"
        raise ValueError(f"{name} must be a tuple of {len(space.spaces)} batched arrays, not {has}")
    return list(enumerate(space.spaces))

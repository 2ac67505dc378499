"""Checks the arguments of public functions, so that a wrong one is refused by its name."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echo_core import ConfigError

__all__ = ["MANY", "number", "path_of", "real_rewards", "seed_of", "shape_of", "whole"]

MANY = 2**31 - 1  # more individuals, epochs or parameters than anybody has; counts up to here fit every integer that stores them


def whole(name: str, value: Any, least: int, most: int = MANY) -> int:
    """`value` as an int. Raises ConfigError if it is not a whole number from `least` to `most`."""
    if (found := _integer(value)) is None or not least <= found <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return found


def seed_of(value: Any) -> int:
    """A seed as an int; it may be of any size, and negative. Raises ConfigError if it is not a whole number."""
    if (found := _integer(value)) is None:
        raise ConfigError(f"seed must be a whole number, not {value!r}")
    return found


def number(name: str, value: Any, *, least: float | None = None, above: float | None = None, finite: bool = True) -> float:
    """`value` as a float. Raises ConfigError if it is not a real number, is NaN, is less than `least`, or is not above `above`.

    `finite`: whether infinity is refused as well.
    """
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not real or math.isnan(value) or (finite and math.isinf(value)) or (least is not None and value < least) or (above is not None and not value > above):
        where = f" of at least {least:g}" if least is not None else f" above {above:g}" if above is not None else ""
        raise ConfigError(f"{name} must be a {'finite ' if finite else ''}number{where}, not {value!r}")
    return float(value)


def shape_of(name: str, value: Any) -> tuple[int, ...]:
    """`value` as the shape of an array. Raises ConfigError if it is not a sequence of whole numbers of at least 1."""
    if not isinstance(value, Iterable) or isinstance(value, str):
        raise ConfigError(f"{name} must be the shape of one observation, such as (8,), not {value!r}")
    return tuple(whole(f"{name}: each size of the shape", size, 1) for size in value)


def path_of(name: str, value: Any) -> Path:
    """`value` as the path of a file. Raises ConfigError if it is neither text nor a path."""
    if not isinstance(value, str | os.PathLike) or not isinstance(text := os.fspath(value), str) or not text or "\0" in text:
        raise ConfigError(f"{name} must be the path of a file, not {value!r:.80}")
    return Path(text)


def real_rewards(rewards: Any) -> NDArray[np.float64]:
    """The rewards as float64. Raises ValueError if they are not real numbers, such as strings, complex numbers or None."""
    try:
        values = np.asarray(rewards)
        if values.dtype.kind == "O":  # an array of objects may hold real numbers only
            values = np.asarray(values.tolist())
    except ValueError:  # a list of lists of different lengths
        raise ValueError("rewards: there must be one real number for each individual, and these are sequences of different lengths") from None
    if values.dtype.kind not in "biuf" and values.size:
        raise ValueError(f"rewards: each must be a real number, and these are {_kind(values)}")
    converted: NDArray[np.float64] = values.astype(np.float64)
    return converted


def _integer(value: Any) -> int | None:
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _kind(values: NDArray[Any]) -> str:
    """Describes the elements in words."""
    if values.dtype.kind == "O":
        others = sorted({type(value).__name__ for value in values.flat if not isinstance(value, int | float)})
        return f"objects of the type {', '.join(others)}" if others else "integers of more than 64 bits"
    return {"c": "complex numbers", "U": "strings", "S": "bytes"}.get(values.dtype.kind, f"of the type {values.dtype}")

"""How a value that somebody gave becomes a numpy array. All of Echo converts here, because `np.asarray` alone changes some values silently.

numpy drops the mask of a masked array, makes text of numbers that are in a list with text, rounds integers beyond 64 bits in a list, and cuts
trailing zero bytes off `bytes`. Such values are refused. Tensors of torch are read in place, with and without a gradient; bfloat16 and float8,
which numpy itself does not have, become the types of `ml_dtypes` with the same bits.
"""

from __future__ import annotations

import sys
from numbers import Number, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import NotAnArrayError, SpecError
from . import device
from .dtypes import dtype_from_json, kind_of

__all__ = ["as_array", "as_float64", "as_numbers"]

_PROTOCOLS = ("__array__", "__array_interface__", "__array_struct__")
_TORCH_WITHOUT_NUMPY = ("bfloat16", "float8_")  # the beginnings of the names of torch's dtypes that `ml_dtypes` has and numpy does not have


def as_array(value: Any, where: str) -> np.ndarray | device.Lent:
    """Return `value` as an array with the same values: one of numpy, or a `device.Lent` for an array in CUDA memory.

    The array may share the value's memory. Its dtype may be object; the caller refuses that.

    Args:
        where: names the value at the beginning of an error's text, such as "leaf 'obs'".

    Raises:
        NotAnArrayError: the value is no array. SpecError: numpy could not read it without changing it.
    """
    if _is_masked(value):
        raise SpecError(f"{where} is a masked array, whose mask would be lost; use value.filled(...)")
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    value = _readable(value, where)
    if not _is_array_like(value):
        if lent := device.lend(value):
            return _landing(lent, where)
        raise NotAnArrayError(
            f"{where} is of type {type(value).__name__}, which is no array, and no container that optree knows; convert it with np.asarray(value, dtype), "
            "or register its class (optree.register_pytree_node, optree.dataclasses.dataclass) and pass the namespace"
        )
    try:
        array = np.asarray(value)
    except Exception as error:
        if lent := device.lend(value):
            return _landing(lent, where)
        raise SpecError(f"{where}: numpy cannot read this {type(value).__name__}: {error}; convert it to an array yourself") from error
    if array.dtype.hasobject and (lent := device.lend(value)):
        return _landing(lent, where)
    return array


def as_numbers(values: Any, what: str) -> np.ndarray:
    """Return an array, or a list or tuple of numbers, as an array of bool, whole or floating numbers of any size.

    Raises:
        ValueError: a value is something else; the text begins with `what`.
    """
    if isinstance(values, (list, tuple)):
        # Entries may be 0-d tensors. numpy makes objects of whole numbers beyond 64 bits; those are numbers too.
        values = np.asarray([_readable(entry, what) for entry in values])
    found = as_array(values, what)
    array = found.landed() if isinstance(found, device.Lent) else found
    if kind_of(array.dtype) not in "bif" and not (array.dtype == object and all(isinstance(entry, Real) for entry in array.flat)):
        raise ValueError(f"{what} must be real numbers, not {array.dtype}")
    return array


def as_float64(values: Any, what: str) -> npt.NDArray[np.float64]:
    """Return `as_numbers` as a C-contiguous float64 array of the same shape.

    Raises:
        ValueError: as `as_numbers`.
    """
    return np.asarray(as_numbers(values, what), np.float64, order="C")


def _is_array_like(value: Any) -> bool:
    if isinstance(value, Number) or any(hasattr(value, name) for name in _PROTOCOLS):
        return True
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _landing(lent: device.Lent | str, where: str) -> device.Lent:
    if isinstance(lent, str):
        raise SpecError(f"{where}: {lent}")
    return lent


def _is_masked(value: Any) -> bool:
    # numpy imports numpy.ma on demand. A process that has not imported it has no masked arrays, and shall not spend the time at its start.
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def _readable(value: Any, where: str) -> Any:
    """Return a tensor of torch in a form that numpy or `device.lend` can read; any other value is returned as it is."""
    torch = sys.modules.get("torch")  # a program that has a tensor has imported it
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.layout != torch.strided:
        raise SpecError(f"{where} is a tensor of layout {value.layout}, which numpy does not have; use value.to_dense()")
    if value.is_meta:
        raise SpecError(f"{where} is a tensor on torch's meta device, which has no values; give it a device and values first")
    if value.is_quantized:
        raise SpecError(f"{where} is a quantized tensor, which numpy does not have; use value.dequantize()")
    value = value.resolve_conj().resolve_neg()
    name = str(value.dtype).removeprefix("torch.")
    if value.device.type == "cpu" and name.startswith(_TORCH_WITHOUT_NUMPY):
        bits = torch.uint8 if value.dtype.itemsize == 1 else torch.int16
        return value.view(bits).numpy().view(dtype_from_json(name))
    return value

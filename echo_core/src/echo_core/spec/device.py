"""Arrays in the memory of a device: which of them can be read here, and which error the others raise.

Such values say where they are through DLPack (`__dlpack_device__`) or `__cuda_array_interface__`. numpy can read some of them all the same,
because their library copies them to the host when asked for an array (jax, numba); those never get here. Of the others, arrays in CUDA memory
can be used if CUDA's driver is installed (cuda.py). For them `lend` returns a `Lent`, which has the array's shape and dtype, and a method
`copy_to` with which the device writes the bytes to an address. All others are refused with an error that says why.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from . import cuda
from .dtypes import dtype_from_json, native

__all__ = ["Lent", "lend", "refusal"]

# DLDeviceType of DLPack's dlpack.h. The host can read page-locked and managed memory (3, 11, 13), like that of the processor itself (1).
CUDA = 2
HOST = (1, 3, 11, 13)
NAMES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI", 15: "WebGPU", 16: "Hexagon"}
FIX = (
    "copy it to the host first: value.detach().cpu() for torch, cupy.asnumpy(value), jax.device_get(value), or into an array that is used again"
    " for every sample"
)
KINDS = {0: "int", 1: "uint", 2: "float", 5: "complex"}  # of DLDataTypeCode, with numpy's names
# Code and bits of types that numpy has only if ml_dtypes is installed.
OF_ML_DTYPES = {
    (4, 16): "bfloat16",
    **{(7 + i, 8): f"float8_{name}" for i, name in enumerate(("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"))},
}


def refusal(value: Any) -> str:
    """Return why numpy cannot read this value and what to do about it, if the reason is the device that it is on; "" otherwise."""
    kind, where = _place(value)
    return f"the {type(value).__name__} lies in the memory of {where}, from which Echo cannot send; {FIX}" if kind else ""


def lend(value: Any) -> Lent | str:
    """Return a value that numpy cannot read as an array of a device. Otherwise, as `refusal`, return why not, or "" for other reasons."""
    kind, where = _place(value)
    if kind != CUDA or (driver := cuda.driver()) is None:
        return refusal(value)
    try:
        return Lent(value, driver)
    except Exception as error:  # an error of the driver, or of the value's own library
        return f"the {type(value).__name__} lies in the memory of {where}, from which it cannot be sent ({error}); {FIX}"


def _place(value: Any) -> tuple[int, str]:
    """Return the kind of device that a value is on, and its name for messages; 0 if it is the host or not known."""
    try:
        kind, number = (int(part) for part in value.__dlpack_device__())
    except Exception:  # it has no such method, or a broken one: this must not fail here
        kind, number = 0, 0
    if kind in HOST:
        return 0, ""
    if kind:
        return kind, f"{NAMES.get(kind, f'DLPack type {kind}')} device {number}"
    return (CUDA, "a CUDA device") if hasattr(type(value), "__cuda_array_interface__") else (0, "")


class Lent:
    """An array in CUDA memory, C-contiguous, in this machine's byte order. All work that its producer had begun on it is done.

    Attributes:
        shape, dtype, ndim, size, nbytes: as for a numpy array.
    """

    def __init__(self, value: Any, driver: cuda.Driver) -> None:
        if hasattr(value, "__dlpack__"):
            strides = self._by_dlpack(value, driver)
        else:
            self._owner = value
            strides = self._by_interface(value.__cuda_array_interface__, driver)
        self.ndim, self.size = len(self.shape), prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        if self.dtype != native(self.dtype):
            raise TypeError(f"its {self.dtype} have another byte order")
        if strides is not None and self.size:
            step = 1
            for length, stride in zip(reversed(self.shape), reversed(strides)):
                if length != 1 and stride != step:
                    raise ValueError("it is not contiguous; use value.contiguous() or cupy.ascontiguousarray(value)")
                step *= length

    def _by_dlpack(self, value: Any, driver: cuda.Driver) -> tuple[float, ...] | None:
        self._place = driver.place_on(int(value.__dlpack_device__()[1]))
        # The producer makes this stream wait for the work that it has begun. The capsule is its reference to the memory.
        self._owner = value.__dlpack__(stream=self._place.stream)
        tensor = ctypes.cast(_capsule_pointer(self._owner, b"dltensor"), ctypes.POINTER(_Tensor)).contents
        self._place.wait(self._place.stream)
        self.shape = tuple(tensor.shape[: tensor.ndim])
        self.dtype = _dtype(tensor.code, tensor.bits, tensor.lanes)
        self._address = (tensor.data or 0) + tensor.byte_offset
        return tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None

    def _by_interface(self, interface: dict[str, Any], driver: cuda.Driver) -> tuple[float, ...] | None:
        if interface.get("mask") is not None:
            raise TypeError("it has a mask")
        self.shape = tuple(interface["shape"])
        self.dtype = np.dtype(interface["typestr"])
        self._address = interface["data"][0]
        self._place = driver.place_of(self._address) if prod(self.shape) else driver.place_here()
        # None: there is nothing to wait for. Before version 3 this was not given; work without a stream of its own is on the default stream.
        stream = interface.get("stream", None if interface["version"] >= 3 else cuda.DEFAULT_STREAM)
        if stream is not None:
            self._place.wait(stream)
        strides = interface.get("strides")
        return None if strides is None else tuple(stride / self.dtype.itemsize for stride in strides)

    def copy_to(self, address: int, start: int = 0, count: int = -1) -> None:
        """Let the device write `count` bytes (-1: all) from byte `start` on to this address. Returns when they have arrived.

        Raises:
            CudaError: with the driver's error text.
        """
        count = self.nbytes - start if count < 0 else count
        if count:
            self._place.read(self._address + start, address, count)

    def landed(self) -> np.ndarray:
        """Return the array in page-locked memory of the host. The memory is used again when the array is freed."""
        array = np.asarray(cuda.Landing(self.nbytes, self._place))[: self.nbytes].view(self.dtype).reshape(self.shape)
        self.copy_to(array.ctypes.data)
        return array


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h: the memory of a `__dlpack__` capsule begins with it."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _dtype(code: int, bits: int, lanes: int) -> np.dtype:
    if lanes == 1 and (code, bits) in OF_ML_DTYPES:
        return dtype_from_json(OF_ML_DTYPES[code, bits])
    if lanes == 1 and (code, bits) == (6, 8):
        return np.dtype(np.bool_)
    if lanes != 1 or code not in KINDS:
        raise TypeError(f"numpy has no type for DLPack's type {code} of {bits} bits and {lanes} lanes")
    return np.dtype(f"{KINDS[code]}{bits}")

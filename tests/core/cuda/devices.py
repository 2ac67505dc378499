"""The devices of driver.c, and arrays in their memory as libraries show them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # of DLPack


class Gpu:
    """The library's devices: contexts 0 and 1 are those of devices 0 and 1, 2 is another one on device 0."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        for name in ("allocate", "stream"):
            getattr(self.library, f"test_{name}").restype = ctypes.c_void_p
        self.library.test_last_target.restype = ctypes.c_size_t

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, f"test_{name}")
        return lambda *given: function(*(ctypes.c_size_t(one) if isinstance(one, int) and one > 1 << 30 else one for one in given))

    def upload(self, value: Any, context: int = 0, pooled: bool = False) -> int:
        """A copy of an array in the memory of a device; its address."""
        data = np.ascontiguousarray(value)
        address = self.library.test_allocate(ctypes.c_size_t(max(data.nbytes, 1)), context, int(pooled))
        self.library.test_upload(ctypes.c_void_p(address), ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes))
        return int(address)


class OnDevice:
    """As torch and cupy do it: DLPack, and numpy must not copy it in secret."""

    def __init__(self, gpu: Gpu, value: Any, device: int = 0, strides: tuple[int, ...] | None = None, offset: int = 0, stream: int = 0) -> None:
        self.gpu, self.value, self.device, self.strides, self.offset, self.stream = gpu, np.asarray(value), device, strides, offset, stream
        self.address = gpu.upload(np.concatenate([np.zeros(offset, np.uint8), np.frombuffer(self.value.tobytes(), np.uint8)]), device)
        self.streams: list[int] = []  # that it was asked to make wait
        self.code = CODES.get(self.value.dtype.kind, 4), self.value.dtype.itemsize * 8, 1

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __dlpack__(self, *, stream: int) -> Any:
        self.streams.append(stream)
        if self.stream:
            self.gpu.order(stream, self.stream)
        return capsule(self)


class Tensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


def capsule(one: OnDevice) -> Any:
    shape = (ctypes.c_int64 * one.value.ndim)(*one.value.shape)
    strides = None if one.strides is None else (ctypes.c_int64 * one.value.ndim)(*one.strides)
    tensor = Tensor(one.address, 2, one.device, one.value.ndim, *one.code, shape, strides, one.offset)
    one.kept = tensor, shape, strides  # type: ignore[attr-defined]
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(ctypes.addressof(tensor), b"dltensor", None)


class ByInterface:
    """Only `__cuda_array_interface__`, as a buffer of rmm or an array of PyCUDA."""

    def __init__(self, gpu: Gpu, value: Any, context: int = 0, pooled: bool = False, **more: Any) -> None:
        value = np.asarray(value)
        self.address = gpu.upload(value, context, pooled)
        self.interface = {"shape": value.shape, "typestr": value.dtype.str, "data": (self.address, False), "version": 3} | more

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.interface

"""The parts of CUDA's driver that samples need: reading memory of a device, and page-locking memory of the host.

`driver()` loads libcuda.so.1 (ECHO_CUDA_LIBRARY names another library) when the first array on a device is met, or a store is to be
page-locked. Before that nothing needs CUDA, not even the build. A call that fails raises `CudaError` with the driver's error text.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import Any

import numpy as np

from ..base.errors import EchoError

__all__ = ["DEFAULT_STREAM", "CudaError", "Driver", "Landing", "Place", "driver", "found"]

LIBRARY = "ECHO_CUDA_LIBRARY"
DEFAULT_STREAM = 1  # CU_STREAM_LEGACY
_CONTEXT, _ORDINAL = 1, 9  # CU_POINTER_ATTRIBUTE_CONTEXT, _DEVICE_ORDINAL
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: this stream and the default stream do not wait for each other
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: page-locked for every context
_SPARE_BYTES = 256 << 20  # of Landing memory that is kept for the next array: page-locking takes longer than most copies

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuPointerGetAttribute": (c_void_p, c_int, c_void_p),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_void_p, c_size_t, c_void_p),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
}


class CudaError(EchoError, RuntimeError):
    """CUDA's driver is not installed, or a call of it failed."""


def driver() -> Driver | None:
    """Return the driver of this process; None if there is no driver or no device."""
    one = found()
    return one if isinstance(one, Driver) else None


@functools.cache
def found() -> Driver | str:
    """Return the driver, or a text that says why it cannot be used."""
    name = os.environ.get(LIBRARY) or "libcuda.so.1"
    try:
        return Driver(name)
    except (OSError, AttributeError, CudaError) as error:
        return f"CUDA's driver {name} cannot be used: {error}"


class Driver:
    """The loaded driver. Raises OSError, AttributeError or CudaError if it cannot be loaded, lacks a function or has no device."""

    def __init__(self, name: str) -> None:
        self._library = ctypes.CDLL(name)
        for function, arguments in _FUNCTIONS.items():
            getattr(self._library, function).argtypes = arguments
        self._places: dict[int, Place] = {}  # by context
        self._primary: dict[int, int] = {}  # contexts by device; retained for as long as the process lives
        self.call("cuInit", 0)
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        if not count.value:
            raise CudaError("it has no device")

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the driver; other threads run meanwhile. Raises CudaError."""
        if status := getattr(self._library, function)(*arguments):
            raise self.error(function, status)

    def error(self, function: str, status: int) -> CudaError:
        name, text = c_char_p(), c_char_p()
        self._library.cuGetErrorName(status, byref(name))
        self._library.cuGetErrorString(status, byref(text))
        return CudaError(f"{function}: {(name.value or b'error %d' % status).decode()}, {(text.value or b'unknown').decode()}")

    def address_of(self, function: str) -> int:
        """Return the address of one of the driver's functions, for native code."""
        return ctypes.cast(getattr(self._library, function), c_void_p).value or 0

    def place_of(self, address: int) -> Place:
        """Return the place of the memory at an address of a device: its own context, or that of its device if it has none (pools)."""
        context, ordinal = c_void_p(), c_int()
        try:
            self.call("cuPointerGetAttribute", byref(context), _CONTEXT, address)
        except CudaError:
            context.value = None
        if context.value:
            return self._place(context.value)
        self.call("cuPointerGetAttribute", byref(ordinal), _ORDINAL, address)
        return self.place_on(ordinal.value)

    def place_on(self, device: int) -> Place:
        """Return the context of a device that all libraries share unless they name one of their own."""
        if device not in self._primary:
            context = c_void_p()
            self.call("cuDevicePrimaryCtxRetain", byref(context), device)
            self._primary[device] = context.value or 0
        return self._place(self._primary[device])

    def place_here(self) -> Place:
        """Return the calling thread's context, or that of the first device if the thread has none."""
        context = c_void_p()
        self.call("cuCtxGetCurrent", byref(context))
        return self._place(context.value) if context.value else self.place_on(0)

    def _place(self, context: int) -> Place:
        if context not in self._places:
            self._places[context] = Place(self, context)
        return self._places[context]


class Place:
    """A context of the driver, with a stream of ours: `stream` is an integer, as in DLPack and `__cuda_array_interface__`."""

    def __init__(self, driver: Driver, context: int) -> None:
        self.driver, self.context = driver, context
        stream = c_void_p()
        self._inside(("cuStreamCreate", byref(stream), _NON_BLOCKING))
        self.stream = stream.value or 0

    def wait(self, stream: int) -> None:
        """Wait until all work that was put on this stream is done."""
        self._inside(("cuStreamSynchronize", stream))

    def read(self, source: int, target: int, count: int) -> None:
        """Copy bytes of the device into the host's memory."""
        self._inside(("cuMemcpyDtoHAsync_v2", target, source, count, self.stream), ("cuStreamSynchronize", self.stream))

    def lock(self, address: int, count: int) -> None:
        """Let devices access these pages of the host directly, until `unlock`, which must be called before the pages are unmapped."""
        self._inside(("cuMemHostRegister_v2", address, count, _PORTABLE))

    def unlock(self, address: int) -> None:
        self._inside(("cuMemHostUnregister", address))

    def _inside(self, *calls: tuple[Any, ...]) -> None:
        before = c_void_p()
        self.driver.call("cuCtxPushCurrent_v2", self.context)
        try:
            for function, *arguments in calls:
                self.driver.call(function, *arguments)
        finally:
            self.driver.call("cuCtxPopCurrent_v2", byref(before))


class Landing:
    """Memory of the host for one array of a device, page-locked if that is allowed. numpy's arrays over it keep it alive. When the last of
    them is freed, the next array of this size gets the memory."""

    _spare: dict[int, list[tuple[mmap.mmap, int, bool]]] = {}
    _spare_bytes = 0

    def __init__(self, count: int, place: Place) -> None:
        self._size = -(-max(count, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._place = place
        try:
            self._memory, self._address, self._locked = self._spare[self._size].pop()
            Landing._spare_bytes -= self._size
        except LookupError:
            self._memory, self._locked = mmap.mmap(-1, self._size), True
            self._address = np.frombuffer(self._memory, np.uint8).ctypes.data
            try:
                place.lock(self._address, self._size)
            except CudaError:  # the driver then copies through pages of its own
                self._locked = False
        self.__array_interface__ = {"shape": (self._size,), "typestr": "|u1", "data": (self._address, False), "version": 3}

    def __del__(self) -> None:
        if not hasattr(self, "__array_interface__"):
            return  # the constructor found no memory
        if self._spare_bytes + self._size <= _SPARE_BYTES:
            Landing._spare_bytes += self._size
            self._spare.setdefault(self._size, []).append((self._memory, self._address, self._locked))
        elif self._locked:
            self._place.unlock(self._address)

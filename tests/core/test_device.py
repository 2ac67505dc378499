"""Arrays in the memory of a device: refused by name with the fix, unless their library copies them to the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echo_core import Server
from echo_core.base.errors import SpecError
from echo_core.spec.device import refusal
from echo_core.spec.spec import Spec

INTERFACE = {"shape": (4,), "typestr": "<f4", "data": (16, False), "version": 3}
FITS = np.arange(4, dtype=np.float32)


class Interface:
    """Only `__cuda_array_interface__`, as a buffer of rmm."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return INTERFACE


class Tells:
    """Says by DLPack where it lies."""

    def __init__(self, kind: int, number: int = 0) -> None:
        self.where = kind, number

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.where


class Refuses(Tells):
    """As torch and cupy do: numpy must not copy it in secret."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("can't convert it")


class Copies(Tells):
    """As jax and numba do: the library itself brings it to the host."""

    __cuda_array_interface__ = INTERFACE

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return FITS


class Broken:
    """Asking it where it lies fails, with no ordinary exception either."""

    def __dlpack_device__(self) -> tuple[int, int]:
        raise BufferError("moved away")


DEVICES = [
    (Interface(), "a CUDA device"),
    (Tells(2, 1), "CUDA device 1"),
    (Tells(10), "ROCm device 0"),
    (Tells(99), "DLPack type 99 device 0"),
    (Refuses(2), "CUDA device 0"),
    (Refuses(8), "Metal device 0"),
]


@pytest.mark.parametrize(("value", "where"), DEVICES)
def test_it_is_refused_by_name_with_the_fix(value: Any, where: str) -> None:
    spec = Spec.from_example({"obs": FITS, "reward": np.float32(0)})
    message = rf"leaf 'obs': the {type(value).__name__} lies in the memory of {where}, .*copy it to the host first: .*\.cpu\(\)"
    with pytest.raises(SpecError, match=message):
        spec.check({"obs": value, "reward": np.float32(0)})
    with pytest.raises(SpecError, match=r"leaf 'reward': .* lies in the memory of"):
        spec.check({"obs": FITS, "reward": value})
    with pytest.raises(SpecError, match=r"leaf 'obs' of the example: .* lies in the memory of"):
        Spec.from_example({"obs": value})


@pytest.mark.needs("echo-samplers")
def test_weights_are_refused_too() -> None:
    with Server({"obs": FITS}, 2) as server:
        with pytest.raises(SpecError, match="'layer'.*lies in the memory of CUDA device 0"):
            server.publish({"layer": Refuses(2)})
        with pytest.raises(SpecError, match="'layer'.*lies in the memory of a CUDA device"):
            server.publish({"layer": Interface()})
        server.publish({"layer": FITS})


@pytest.mark.needs("echo-samplers")
def test_nothing_of_a_refused_sample_reaches_the_store() -> None:
    with Server({"obs": FITS}, 2) as server:
        for value, _ in DEVICES:
            with pytest.raises(SpecError):
                server.submit({"obs": value})
        server.submit({"obs": FITS})
        server.submit({"obs": FITS + 1})
        one = server.sample(timeout=5)
        assert one is not None and one.batch["obs"].tolist() == [FITS.tolist(), (FITS + 1).tolist()]


def test_what_its_library_copies_is_sent() -> None:
    spec = Spec.from_example({"obs": Copies(2)})
    assert spec == Spec.from_example({"obs": FITS})
    spec.check({"obs": Copies(2)})


@pytest.mark.parametrize("kind", [1, 3, 11, 13])
def test_the_host_s_own_memory_is_no_device_s(kind: int) -> None:
    assert refusal(Copies(kind)) == ""


@pytest.mark.parametrize("value", [Broken(), object(), None, FITS, 3, "text"])
def test_what_says_nothing_of_devices_is_not_accused(value: Any) -> None:
    assert refusal(value) == ""

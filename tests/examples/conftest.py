"""What the tests of several examples share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest


def _assert_gradient(parameters: np.ndarray, gradient: np.ndarray, loss: Callable[[], float]) -> None:
    """`gradient` is that of `loss()` by `parameters`, float64 of shape (n,), which are changed and put back one by one."""
    step = 1e-6
    for index in range(parameters.size):
        kept = parameters[index]
        parameters[index] = kept + step
        above = loss()
        parameters[index] = kept - step
        below = loss()
        parameters[index] = kept
        assert gradient[index] == pytest.approx((above - below) / (2 * step), abs=1e-7), index


@pytest.fixture
def assert_gradient() -> Callable[[np.ndarray, np.ndarray, Callable[[], float]], None]:
    """`assert_gradient(parameters, gradient, loss)`: a hand-written derivative against central differences."""
    return _assert_gradient

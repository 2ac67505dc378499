"""Makes keys in the form that samplers take, and defines how many of them a replay sampler needs room for in these tests."""

from __future__ import annotations

import numpy as np

from echo_core.store.sampler import Keys

CAPACITY = 1000  # the least capacity of a replay sampler in these tests; its keys are below this


def keys(*values: int) -> Keys:
    return np.array(values, np.uint64)

"""Keys as samplers take them, and how many a replay sampler must have room for here."""

from __future__ import annotations

import numpy as np

from ...store.sampler import Keys

CAPACITY = 1000  # of a replay sampler here, at least; its keys are below


def keys(*values: int) -> Keys:
    return np.array(values, np.uint64)

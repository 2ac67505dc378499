"""Keys of a cluster name shard, life and key, and other keys are refused."""

from __future__ import annotations

import numpy as np
import pytest

from echo_cluster.keys import KEY, check_keys, keys_of
from echo_core import SpecError


def test_a_key_has_its_shard_and_life() -> None:
    keys = keys_of([(3, 65_537, np.array([7], np.uint64)), (4, 2, np.array([1 << 63], np.uint64))])
    assert keys.dtype == KEY and keys["shard"].tolist() == [3, 4] and keys["life"].tolist() == [1, 2]
    assert keys["key"].tolist() == [7, 1 << 63]
    assert check_keys(keys[:1]).tolist() == [(3, 1, 7)]


@pytest.mark.parametrize("wrong", [np.array([1], np.uint64), [1, 2], np.zeros((2, 2), KEY)])
def test_other_keys_are_refused(wrong: object) -> None:
    with pytest.raises(SpecError, match="keys of a cluster"):
        check_keys(wrong)

"""Clauses about refusals: wrong arguments are refused by name, and change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echo_core.base.errors import DuplicateKeyError, UnknownKeyError

from .keys import keys


class RefusalClauses:
    @pytest.mark.parametrize(
        ("call", "error", "said"),
        [
            (lambda s: s.insert(keys(4, 2)), DuplicateKeyError, "key 2"),
            (lambda s: s.insert(keys(4, 5, 4)), DuplicateKeyError, "key 4"),
            (lambda s: s.insert(keys(4, 999)), DuplicateKeyError, "key 999"),
            (lambda s: s.delete(keys(1, 8)), UnknownKeyError, "key 8"),
            (lambda s: s.delete(keys(1, 1)), UnknownKeyError, "key 1"),
            (lambda s: s.update(keys(1, 8), np.ones(2)), UnknownKeyError, "key 8"),
            (lambda s: s.update(keys(1, 2), np.ones(1)), ValueError, "priorities"),
            (lambda s: s.update(keys(1, 2), np.array([1.0, np.nan])), ValueError, "key 2"),
            (lambda s: s.update(keys(1, 2), np.array([np.inf, 1])), ValueError, "key 1"),
            (lambda s: s.update(keys(1), np.array([-1.0])), ValueError, "key 1"),
            (lambda s: s.insert(keys(4, 5), np.array([1.0, -2])), ValueError, "key 5"),
            (lambda s: s.insert(keys(4, 5), np.ones(3)), ValueError, "priorities"),
        ],
    )
    def test_a_call_that_raises_has_changed_nothing(
        self, call: Any, error: type[Exception], said: str
    ) -> None:
        sampler, twin = self.filled(1, 2, 3, 999), self.filled(1, 2, 3, 999)
        with pytest.raises(error) as caught:
            call(sampler)
        assert said in str(caught.value)
        assert len(sampler) == 4
        for seed in range(5):
            rngs = np.random.default_rng(seed), np.random.default_rng(seed)
            mine, theirs = sampler.sample(3, rngs[0]), twin.sample(3, rngs[1])
            assert mine[0].tolist() == theirs[0].tolist()
            assert mine[1].tolist() == theirs[1].tolist()

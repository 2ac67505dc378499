"""Clauses about states: a state is a complete, plain copy, and invalid states are refused."""

from __future__ import annotations

import numpy as np
import pytest

from .keys import keys


class CheckpointClauses:
    def test_a_restored_sampler_answers_as_the_original(self) -> None:
        original = self.played()
        state = original.state()
        again = self.sampler()
        again.insert(keys(500, 501))
        again.restore({name: array.copy() for name, array in state.items()})
        assert len(again) == len(original)
        for step in range(20):
            rngs = np.random.default_rng(step), np.random.default_rng(step)
            mine, theirs = original.sample(6, rngs[0]), again.sample(6, rngs[1])
            assert mine[0].tolist() == theirs[0].tolist()
            assert mine[1].tolist() == theirs[1].tolist()
            for sampler in (original, again):
                sampler.insert(keys(200 + step))
                sampler.update(keys(200 + step), np.array([2.0 + step]))
                if step % 3 == 0:
                    sampler.delete(keys(int(theirs[0][0])))

    def test_state_is_plain_and_a_copy(self) -> None:
        sampler = self.played()
        state = sampler.state()
        assert isinstance(state, dict) and all(isinstance(name, str) for name in state)
        for name, array in state.items():
            assert isinstance(array, np.ndarray), name
            assert array.dtype.kind in "biufc", f"{name} is {array.dtype}"
        copies = {name: array.copy() for name, array in state.items()}
        sampler.delete(keys(1, 100))
        sampler.insert(keys(300))
        for name, array in state.items():
            np.testing.assert_array_equal(array, copies[name])
        sampler.restore(state)
        for array in state.values():
            array[...] = 0
        assert len(sampler) == len(self.played())
        assert set(self.drawn(sampler, 10)) <= {*range(40), 100, 101, self.top}

    def test_an_empty_state_is_a_state(self) -> None:
        sampler = self.filled(1, 2)
        sampler.restore(self.sampler().state())
        assert len(sampler) == 0
        sampler.insert(keys(1, 2))
        assert len(sampler) == 2

    def test_a_state_that_is_none_is_refused_and_named(self) -> None:
        sampler = self.filled(1, 2, 3)
        state = sampler.state()
        for name in state:
            missing = {other: array for other, array in state.items() if other != name}
            with pytest.raises(ValueError, match=name):
                sampler.restore(missing)
        with pytest.raises(ValueError, match="superfluous"):
            sampler.restore({**state, "superfluous": np.zeros(3)})
        assert self.held(sampler, range(6)) == [1, 2, 3]

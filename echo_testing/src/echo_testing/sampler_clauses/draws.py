"""Clauses about draws: keys and probabilities come from the given generator, in the promised order."""

from __future__ import annotations

import numpy as np
import pytest

from .keys import keys


class DrawClauses:
    def test_a_draw_is_keys_and_probabilities(self) -> None:
        sampler = self.filled(5, 3, 9, 0, self.top)
        rng = np.random.default_rng(0)
        drawn, probabilities = sampler.sample(3, rng)
        assert (drawn.dtype, drawn.shape) == (np.uint64, (3,))
        assert (probabilities.dtype, probabilities.shape) == (np.float64, (3,))
        assert set(drawn.tolist()) <= {5, 3, 9, 0, self.top}
        assert ((probabilities > 0) & (probabilities <= 1)).all()
        drawn[...] = 77
        probabilities[...] = 77
        assert set(sampler.sample(3, rng)[0].tolist()) <= {5, 3, 9, 0, self.top}

    def test_a_draw_changes_no_contents(self) -> None:
        sampler = self.filled(1, 2, 3, 4)
        rng = np.random.default_rng(0)
        for _ in range(20):
            sampler.sample(2, rng)
        assert len(sampler) == 4
        assert self.held(sampler, range(6)) == [1, 2, 3, 4]

    def test_equal_samplers_and_seeds_draw_equal_keys(self) -> None:
        def play(seed: int) -> list[int]:
            sampler = self.filled(*range(100), priorities=[1.0 + key % 7 for key in range(100)])
            rng, out = np.random.default_rng(seed), []
            for turn in range(20):
                out += sampler.sample(5, rng)[0].tolist()
                sampler.update(keys(turn, turn + 50), np.array([3.0, 0.5]))
                sampler.delete(keys(turn + 20))
                sampler.insert(keys(900 + turn))
            return out

        assert play(1) == play(1)
        if self.expected(range(3), [1.0] * 3) is None:
            assert play(1) != play(2), "nothing is drawn from the generator"

    def test_it_uses_no_other_randomness(self) -> None:
        np.random.seed(0)
        before = np.random.get_state()[1].tolist()
        sampler = self.filled(*range(50))
        self.drawn(sampler, 20)
        assert np.random.get_state()[1].tolist() == before

    @pytest.mark.parametrize("n", [0, -1])
    def test_less_than_one_is_refused(self, n: int) -> None:
        with pytest.raises(ValueError, match=str(n)):
            self.filled(1, 2).sample(n, np.random.default_rng(0))

    def test_nothing_cannot_be_drawn_from(self) -> None:
        for sampler in (self.sampler(), self.filled()):
            with pytest.raises(ValueError, match=r"1.*0"):
                sampler.sample(1, np.random.default_rng(0))

    def test_more_than_there_is(self) -> None:
        sampler = self.filled(1, 2, 3)
        if sampler.replacement:
            assert set(self.drawn(sampler, 50)) <= {1, 2, 3}
        else:
            with pytest.raises(ValueError, match=r"4.*3"):
                sampler.sample(4, np.random.default_rng(0))
            assert sorted(self.drawn(sampler, 3)) == [1, 2, 3]

    def test_without_replacement_no_key_comes_twice(self) -> None:
        if self.sampler().replacement:
            pytest.skip("draws with replacement")
        sampler = self.filled(*range(60))
        for seed in range(20):
            drawn = self.drawn(sampler, 40, seed)
            assert len(set(drawn)) == 40

    def test_the_order_is_the_promised_one(self) -> None:
        order = [7, 3, self.top, 12, 0, 5]
        priorities = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0]
        wanted = self.expected(order, priorities)
        if wanted is None:
            pytest.skip("draws at random")
        sampler = self.filled(*order[:4], priorities=priorities[:4])
        sampler.insert(keys(*order[4:]), np.array(priorities[4:]))
        for n in range(1, len(order) + 1):
            got, probabilities = sampler.sample(n, np.random.default_rng(n))
            assert got.tolist() == wanted[:n]
            assert (probabilities == 1).all()

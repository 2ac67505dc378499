"""Clauses about measured distributions: keys are drawn as often as reported, and importance weights make means unbiased."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from echo_core.store.sampler import Sampler

from .keys import CAPACITY, keys


class DistributionClauses:
    def test_the_probabilities_are_true(self) -> None:
        """The frequencies of the first drawn key agree with the reported and with the promised
        probabilities, within six standard deviations."""
        priorities = [1.0, 2.0, 0.5, 4.0, 1.0, 3.0]
        order = [10, 11, 12, 13, 14, 15]
        if self.expected(order, priorities) is not None:
            pytest.skip("does not draw at random")
        sampler = self.filled(*order, priorities=priorities)
        rng = np.random.default_rng(3)
        counts, said = dict.fromkeys(order, 0), dict.fromkeys(order, 0.0)
        for _ in range(self.DRAWS):
            (key,), (probability,) = sampler.sample(1, rng)
            counts[int(key)] += 1
            said[int(key)] = float(probability)
        promised = self.probabilities(priorities)
        for index, key in enumerate(order):
            for p in {said[key]} | ({float(promised[index])} if promised else set()):
                deviation = (self.DRAWS * max(p * (1 - p), 1e-4)) ** 0.5
                assert abs(counts[key] - p * self.DRAWS) <= 6 * deviation, (
                    f"key {key}: drawn {counts[key]} of {self.DRAWS} times, but reported p={p:.4f}"
                )

    def test_masses_make_one_sampler_of_several(self) -> None:
        """Two samplers, each taken in proportion to its `mass`, draw every key as often as one sampler of all their keys."""
        everything, priorities = [10, 11, 12, 13, 14, 15], [1.0, 2.0, 0.5, 4.0, 1.0, 3.0]
        mass = self.filled(*everything, priorities=priorities).mass()
        if mass is None:
            pytest.skip("has no mass")
        assert self.expected(everything, priorities) is None, "a sampler that draws nothing at random has a mass of None"
        assert self.sampler().mass() == 0, "the mass of an empty sampler is 0"
        parts = [self.filled(*everything[:4], priorities=priorities[:4]), self.filled(*everything[4:], priorities=priorities[4:])]
        masses = [part.mass() for part in parts]
        assert sum(m for m in masses if m is not None) == pytest.approx(mass, rel=1e-6)
        rng = np.random.default_rng(4)
        for part in parts:
            for key, chance in {int(key): float(chance) for _ in range(64) for key, chance in zip(*part.sample(1, rng), strict=True)}.items():
                promised = self.probabilities(priorities)
                if promised is not None:
                    assert chance * part.mass() / mass == pytest.approx(promised[everything.index(key)], rel=1e-5)
        parts[0].delete(keys(10))
        assert parts[0].mass() < masses[0], "the mass did not follow a deletion"

    def test_a_batch_is_drawn_like_single_keys(self) -> None:
        """The frequency of each key in batches agrees with the reported probabilities of the draws."""
        order = list(range(8))
        priorities = [1.0 + key for key in order]
        if self.expected(order, priorities) is not None or not self.sampler().replacement:
            pytest.skip("its draws depend on each other")
        sampler, rng = self.filled(*order, priorities=priorities), np.random.default_rng(5)
        counts, turns, n = np.zeros(8), self.DRAWS // 16, 16
        said = np.zeros(8)
        for _ in range(turns):
            drawn, probabilities = sampler.sample(n, rng)
            np.add.at(counts, drawn.astype(np.int64), 1)
            said[drawn.astype(np.int64)] = probabilities
        deviation = np.sqrt(turns * n * np.maximum(said * (1 - said), 1e-4))
        assert (abs(counts - said * turns * n) <= 6 * deviation).all(), (counts, said * turns * n)

    def test_a_history_leaves_the_distribution_true(self) -> None:
        """Inserts, deletions and updates do not falsify the distribution.

        Keys are drawn as often as reported (chi-square), and the probabilities of all keys form one
        distribution. With weights of 1 / (N p), the mean over batches is the mean of the contents. So
        no key is left out and none counts twice.
        """
        if self.expected(range(3), [1.0] * 3) is not None:
            pytest.skip("does not draw at random")
        sampler, rng = self.played(), np.random.default_rng(7)
        sampler.update(keys(*range(1, 40, 3)), 0.25 + rng.random(13))
        self._draws_are_true(sampler, self.held_keys(sampler), rng)

    def test_a_full_sampler_tells_the_truth(self) -> None:
        """The same holds for as many keys as a table has rows: a window, or levels of a tree, matter only when there are many keys."""
        if self.expected(range(3), [1.0] * 3) is not None:
            pytest.skip("does not draw at random")
        sampler = self.filled(*range(CAPACITY), priorities=[1.0 + key % 5 for key in range(CAPACITY)])
        self._draws_are_true(sampler, range(CAPACITY), np.random.default_rng(8))

    def _draws_are_true(self, sampler: Sampler, held: Sequence[int], rng: np.random.Generator) -> None:
        """Checks draws of ten keys of a sampler that holds the keys `held`."""
        n = 10
        truth = {key: (key * 37 % 11) / 10 for key in held}
        counts, said, means = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0.0), []
        for _ in range(self.DRAWS // n):
            drawn, probabilities = sampler.sample(n, rng)
            for key, probability in zip(drawn.tolist(), probabilities.tolist(), strict=True):
                assert said[key] in (0.0, probability), f"key {key} has two probabilities"
                counts[key] += 1
                said[key] = probability
            means.append(np.mean([truth[key] for key in drawn.tolist()] / (len(truth) * probabilities)))
        draws = self.DRAWS // n * n
        unseen = sum(1 for probability in said.values() if probability == 0)
        total = sum(said.values())
        assert total <= 1 + 1e-9 and (unseen or total >= 1 - 1e-9), f"the probabilities sum to {total}"
        often = [key for key in truth if said[key] * draws >= 10]
        statistic = sum((counts[key] - said[key] * draws) ** 2 / (said[key] * draws) for key in often)
        most = len(often) + 6 * (2 * len(often)) ** 0.5
        if statistic > most:
            worst = max(often, key=lambda key: abs(counts[key] - said[key] * draws))
            raise AssertionError(
                f"keys are not drawn with the probabilities that sample() reports: key {worst} was drawn {counts[worst]} times in {draws} draws, "
                f"and {said[worst] * draws:.0f} are expected of its probability {said[worst]:.3g}; chi-square of {len(often)} keys is {statistic:.0f}, "
                f"at most {most:.0f} is expected"
            )
        if unseen == 0:
            error, deviation = np.mean(means) - np.mean(list(truth.values())), np.std(means) / len(means) ** 0.5
            assert abs(error) <= 6 * deviation, f"the weighted mean is off by {error:.4f}, {error / deviation:.0f} deviations"

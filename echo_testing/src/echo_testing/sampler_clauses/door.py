"""Clauses about the native interface: it leads to the same contents as the Python methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ..native_door import NativeDoor


class DoorClauses:
    def test_both_doors_lead_to_the_same_contents(self) -> None:
        """Calls that alternate between Python and the capsule of `native()` give the same result as
        calls from Python alone, and the capsule outlives the sampler."""
        sampler, twin = self.played(), self.played()
        capsule = sampler.native()
        if capsule is None:
            pytest.skip("has no native interface")
        door = NativeDoor(capsule)
        for turn in range(40):
            either: Any = door if turn % 2 else sampler
            new = np.arange(200 + 3 * turn, 203 + 3 * turn, dtype=np.uint64)
            given = None if turn % 3 else np.array([0.5, 2.0, turn + 1.0])
            for one in (either, twin):
                one.insert(new, given)
                one.update(new[1:], np.array([3.0, 0.5 + turn]))
                if turn % 4 == 3:
                    one.delete(new[:1])
                one.published(turn + 1)
            mine = either.sample(7, np.random.default_rng(turn))
            theirs = twin.sample(7, np.random.default_rng(turn))
            assert mine[0].tolist() == theirs[0].tolist()
            assert mine[1].tolist() == theirs[1].tolist()
            assert len(door) == len(sampler) == len(twin)
            assert door.mass() == sampler.mass() == twin.mass()
        assert (door.victims is not None) == sampler.evicts
        if door.victims is not None:
            assert door.victims(9).tolist() == sampler.victims(9).tolist()
            assert len(door.victims(len(sampler) + 1)) == 0
        assert (door.priorities(new[1:]) >= 0).all()
        with pytest.raises(ValueError, match="not enough"):
            NativeDoor(self.sampler().native()).sample(1, np.random.default_rng(0))
        held = len(sampler)
        del sampler
        assert len(door) == held
        assert len(door.sample(5, np.random.default_rng(0))[0]) == 5

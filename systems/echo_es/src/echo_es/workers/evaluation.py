"""The rewards of individuals that a worker has evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

__all__ = ["Eval"]

Slice: TypeAlias = slice  # within Eval, `slice` is the name of a field


class Eval(NamedTuple):
    """The rewards of the individuals of one slice, one for each."""

    slice: Slice
    rewards: Sequence[float]

    @classmethod
    def from_flat(cls, slices: Sequence[Slice], rewards: Sequence[float]) -> list[Eval]:
        """One Eval for each slice, from the rewards of all slices in their order. Raises ValueError if their number is not that of the individuals."""
        wanted = sum(part.stop - part.start for part in slices)
        if len(rewards) != wanted:
            raise ValueError(f"these slices have {wanted} individuals, but there are {len(rewards)} rewards; give exactly one for each")
        evaluated, at = [], 0
        for part in slices:
            end = at + part.stop - part.start
            evaluated.append(cls(part, rewards[at:end]))
            at = end
        return evaluated

"""The rewards of individuals that a worker has evaluated."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..arguments import real_rewards

__all__ = ["Eval", "Rewards", "checked"]

Rewards: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Slice: TypeAlias = slice  # within Eval, `slice` is the name of a field


class Eval(NamedTuple):
    """The rewards of the individuals of one slice, one for each."""

    slice: Slice
    rewards: Sequence[float] | Rewards

    @classmethod
    def from_flat(cls, slices: Sequence[Slice], rewards: Sequence[float] | Rewards) -> list[Eval]:
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


def checked(returned: Any) -> list[Eval]:
    """What `evaluate` returned, as a list of Eval whose rewards are float64 of shape (individuals,).

    Any objects with a slice and rewards will do, in any iterable. Raises TypeError or ValueError with the remedy for everything else; without that, rewards
    that are too few in one Eval and too many in the next would belong to other individuals.
    """
    try:
        evaluations = list(returned)
    except TypeError:
        raise TypeError(f"evaluate returned {_named(returned)}; return a list of Eval, for instance one for each slice") from None
    return [_checked_one(one) for one in evaluations]


def _checked_one(one: Any) -> Eval:
    try:
        part, rewards = one.slice, one.rewards
    except AttributeError:
        raise TypeError(f"evaluate returned a list that contains {_named(one)}; each element must be an Eval: Eval(slice(0, 2), [0.5, 1.5])") from None
    try:
        within = slice(operator.index(part.start), operator.index(part.stop))
    except (AttributeError, TypeError):
        raise TypeError(f"evaluate returned an Eval whose slice is {part!r:.80}; it needs a start and a stop, which are whole numbers") from None
    size = within.stop - within.start
    try:
        values = real_rewards(rewards if isinstance(rewards, np.ndarray) else list(rewards))
    except (TypeError, ValueError):
        raise TypeError(f"evaluate returned rewards for {within.start}:{within.stop} that are not real numbers: {rewards!r:.80}") from None
    if values.shape != (size,) or part.step not in (None, 1):
        raise ValueError(
            f"evaluate returned rewards of shape {values.shape} for the {max(size, 0)} individuals of {part!r}; give one number for each individual"
        )
    return Eval(within, values)


def _named(value: Any) -> str:
    return "None" if value is None else f"an object of the type {type(value).__name__}"

"""Learners that share a batch: each computes the gradient of its share, and the sums of all shares are the same on each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["ALONE", "ProcessGroup", "divide", "sum_figures", "sum_gradients"]


class ProcessGroup(Protocol):
    """The learners of a batch, one of which is this process.

    Attributes:
        rank: the number of this one, from 0. size: how many there are.
    """

    rank: int
    size: int

    def all_reduce(self, tensor: Tensor) -> None:
        """Add the tensors of all learners, in place. Each learner gets the same bits. All of them must call this with the same shape and dtype.

        Raises EchoError if one of them does not.
        """


class _Alone:
    rank, size = 0, 1

    def all_reduce(self, tensor: Tensor) -> None:
        pass


#: The group of one learner.
ALONE: ProcessGroup = _Alone()


def divide(costs: npt.ArrayLike, group: ProcessGroup) -> npt.NDArray[np.int64]:
    """The indices of this learner's share, ascending. Each index is in the share of one learner, and the sums of the costs are nearly the same.

    The costliest goes first, to the learner that has least (Graham 1969). The shares depend on nothing but the costs.

    Args:
        costs: (N,), such as the tokens of each rollout.
    """
    given = np.asarray(costs)
    if group.size == 1:
        return np.arange(len(given))
    loads, owners = np.zeros(group.size, np.int64), np.zeros(len(given), np.int64)
    for i in np.argsort(-given, kind="stable"):
        owners[i] = loads.argmin()
        loads[owners[i]] += given[i]
    return np.flatnonzero(owners == group.rank)


def sum_gradients(parameters: Iterable[Tensor], group: ProcessGroup) -> None:
    """Replace each gradient by the sum of all learners' gradients. A parameter without one on every learner keeps none."""
    if group.size == 1:
        return
    known = list(parameters)
    # An optimiser moves a parameter whose gradient is zero, by its momentum, and leaves alone one that has none.
    has = torch.tensor([float(p.grad is not None) for p in known], device=known[0].device)
    flat = torch.cat([*((torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).detach() for p in known), has])
    group.all_reduce(flat)
    *sums, there = flat.split([*(p.numel() for p in known), len(known)])
    for parameter, one, count in zip(known, sums, there.tolist(), strict=True):
        parameter.grad = one.view_as(parameter) if count else None


def sum_figures(figures: Mapping[str, float], names: Sequence[str], group: ProcessGroup) -> dict[str, float]:
    """The sums of all learners' figures with these names. A figure that a learner does not have is 0 there."""
    if group.size == 1:
        return dict(figures)
    sums = torch.tensor([figures.get(name, 0.0) for name in names], dtype=torch.float64)
    group.all_reduce(sums)
    return dict(zip(names, sums.tolist(), strict=True))

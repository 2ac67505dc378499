"""The arrays of a batch of items over steps. The server that gathers the batch and a client that asks for it both use this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optree

from echo_core.base.errors import ConfigError
from echo_core.spec.leaf import LeafSpec
from echo_core.spec.spec import Spec

from .items import MOST_STEPS, FrameStack, Items, NStep, Sequences, Slices, items_from_json, leaf_index, stacks_of

__all__ = ["Layout", "StepSample"]

_MINE = ("batch", "info", "keys", "probabilities", "weights", "mask", "ends", "next", "returns", "discounts", "terminated")


class StepSample:
    """A batch of items over steps; unpacks as `batch, info = server.sample()`.

    Attributes:
        batch: the user's structure. For windows, leaves have shape `(n, T, *leaf.shape)`; for transitions, `(n, *leaf.shape)`. Stacked leaves
            have one more axis in front of `leaf.shape`. Arrays are writable, and valid for as long as anything refers to them.
        info, keys, probabilities, weights: as in `Sample`.
        mask: for windows, bool of shape (n, T): where there is a step.
        ends: for windows, uint8 of shape (n, T): 0 where the episode goes on, 1 terminated, 2 truncated, 3 boundary (`steps.ENDS`).
        next, returns, discounts, terminated: for transitions, see `NStep`. `next` has the structure of `batch`; `returns` has shape and dtype
            of the reward leaf; `discounts` is float32 (n,), and `terminated` is bool (n,).

    Attributes that a kind of items does not have are None.
    """

    __slots__ = _MINE
    __match_args__ = ("batch", "info")

    def __init__(self, batch: Any, info: Any, keys: Any, probabilities: Any, weights: Any, next: Any = None, **figures: Any) -> None:
        self.batch, self.info, self.next = batch, info, next
        self.keys, self.probabilities, self.weights = keys, probabilities, weights
        for name in ("mask", "ends", "returns", "discounts", "terminated"):
            setattr(self, name, figures.get(name))

    def with_batch(self, batch: Any) -> StepSample:
        """Return the same with another batch, such as a copy of this one's. The result holds nothing of this batch's memory."""
        other = StepSample(batch, self.info.copied() if hasattr(self.info, "copied") else self.info, None, None, None)
        for name in _MINE[2:]:
            value = getattr(self, name)
            if value is not None:
                setattr(other, name, optree.tree_map(np.copy, value) if name == "next" else value.copy())
        return other

    def __iter__(self) -> Any:
        yield self.batch
        yield self.info

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return (self.batch, self.info)[index]

    def __repr__(self) -> str:
        return f"StepSample(batch={self.batch!r}, info={self.info!r})"


class Layout:
    """The arrays of a batch.

    Args:
        spec: of a step. items: the kind of items. stack: for frames, see `FrameStack`.

    Attributes:
        batch: `Spec` of `batch` for one item. next: that of `next`; None for windows. figures: that of the other arrays, a dict.
        item_bytes: bytes of one item in a batch.

    Raises:
        ConfigError: items and step do not fit together; names the option.
    """

    def __init__(self, spec: Spec, items: Items, stack: FrameStack | Sequence[FrameStack] | None = None) -> None:
        if not isinstance(items, Items):
            raise ConfigError(f"items must be Sequences(...), NStep(...) or Slices(...), not {items!r}")
        self.spec, self.items = spec, items
        stacks = stacks_of(spec, stack)
        self.stacks = [stacks[leaf.path].n if leaf.path in stacks else 1 for leaf in spec.leaves]
        self.repeat = all(one.fill == "first" for one in stacks.values())
        self._stack = list(stacks.values())
        lookback, forward, self.period = items.cut()
        self.lookback, self.forward = lookback + max(self.stacks, default=1) - 1, forward
        if self.lookback + forward > MOST_STEPS:
            raise ConfigError(f"{items} with its frame stacks needs {self.lookback + forward} steps, an item has at most {MOST_STEPS}")
        self.reward, self.wide, self.gamma, self.next = -1, False, 0.0, None
        if isinstance(items, NStep):
            self.reward = leaf_index(spec, items.reward, "NStep: reward")
            reward = spec.leaves[self.reward]
            if reward.dtype not in (np.float32, np.float64):
                raise ConfigError(f"NStep: leaf {items.reward!r} is {reward.dtype}, returns need float32 or float64; change the example")
            if self.stacks[self.reward] > 1:
                raise ConfigError(f"NStep: the reward {items.reward!r} cannot be stacked too; leave its FrameStack out")
            self.wide, self.gamma = reward.dtype == np.float64, float(items.gamma)
            self.batch = self.next = self._shaped(())
            self.figures = Spec.from_example(
                {"a_returns": np.zeros(reward.shape, reward.dtype), "b_discounts": np.float32(0), "c_terminated": np.bool_(0)}
            )
        else:
            assert isinstance(items, (Sequences, Slices))
            self.batch = self._shaped((items.window,))
            self.figures = Spec.from_example({"a_mask": np.zeros(items.window, np.bool_), "b_ends": np.zeros(items.window, np.uint8)})
        self.parts = [part for part in (self.batch, self.next, self.figures) if part is not None]
        self.item_bytes = sum(part.sample_bytes for part in self.parts)

    def _shaped(self, front: tuple[int, ...]) -> Spec:
        spec = self.spec
        leaves = tuple(
            LeafSpec(leaf.path, (*front, *((stack,) if stack > 1 else ()), *leaf.shape), leaf.dtype)
            for leaf, stack in zip(spec.leaves, self.stacks)
        )
        return Spec(leaves, spec.structure, spec.treedef, spec.namespace)

    @property
    def leaves(self) -> list[LeafSpec]:
        """The leaves of one item, all parts one after another: this is their order in memory and in messages."""
        return [leaf for part in self.parts for leaf in part.leaves]

    def sample(self, trees: Sequence[Any], info: Any, keys: Any, probabilities: Any, weights: Any) -> StepSample:
        """Return the sample that consists of these trees."""
        figures = {name[2:]: value for name, value in trees[-1].items()}  # the letters in front keep the order of the leaves
        following = trees[1] if self.next is not None else None
        return StepSample(trees[0], info, keys, probabilities, weights, following, **figures)

    def from_leaves(self, leaves: Sequence[Any], info: Any, keys: Any, probabilities: Any, weights: Any) -> StepSample:
        """Return the sample that consists of these arrays, which are in the order of `leaves`."""
        trees, at = [], 0
        for part in self.parts:
            assert part.treedef is not None
            trees.append(part.treedef.unflatten(leaves[at : at + len(part.leaves)]))
            at += len(part.leaves)
        return self.sample(trees, info, keys, probabilities, weights)

    def to_leaves(self, sample: StepSample) -> list[np.ndarray]:
        """Return a sample's arrays in the order of `leaves`."""
        found = []
        for part, tree in zip(self.parts, [sample.batch, sample.next] if self.next is not None else [sample.batch]):
            found += optree.tree_leaves(tree, namespace=part.namespace)
        return [*found, *(getattr(sample, leaf.path[2:]) for leaf in self.figures.leaves)]

    def to_json(self) -> dict[str, Any]:
        return {"items": self.items.to_json(), "stack": [[one.n, one.leaf, one.fill] for one in self._stack]}

    @classmethod
    def from_json(cls, spec: Spec, value: dict[str, Any]) -> Layout:
        """Return the layout that `to_json` described, for the same step."""
        return cls(spec, items_from_json(value["items"]), [FrameStack(*one) for one in value["stack"]])

"""What the items of a table are when its rows are steps: windows of an episode or n-step transitions, with frames stacked on reading.

    Table("replay", step, capacity=1_000_000, items=Sequences(length=80, period=40, burn_in=20), sampler="prioritized")
    Table("replay", step, capacity=1_000_000, items=NStep(3, gamma=0.99), stack=FrameStack(4, leaf="obs"), sampler="prioritized")

Steps are stored once. An item is 16 bytes that say where its steps begin, beside what its sampler keeps of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from ...base.errors import ConfigError, did_you_mean
from ...spec.spec import Spec

__all__ = ["FrameStack", "Items", "NStep", "Sequences", "Slices", "items_from_json", "stacks_of"]

MOST_STEPS = 1 << 16  # of one item, with what lies before its anchor


@dataclass(frozen=True)
class Items(ABC):
    """Base of the kinds of items."""

    kind: ClassVar[str]

    @abstractmethod
    def cut(self) -> tuple[int, int, int]:
        """Steps before an item's anchor that it has itself, steps from there on, and steps from one anchor to the next."""

    @abstractmethod
    def most(self, steps: int) -> int:
        """The most items that `steps` steps can make."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Sequences(Items):
    """Windows of consecutive steps of one episode, for recurrent learners (R2D2, Kapturowski et al. 2019).

    A batch's leaves have shape `(n, burn_in + length, *leaf.shape)`; `mask`, bool of shape `(n, burn_in + length)`, is True where there is
    a step, and everything else is zeros. Windows never reach over an episode's end.

    Attributes:
        length: steps to learn from. The first window begins with the episode's first step.
        period: steps from one window to the next; None is `length`, less makes windows overlap.
        burn_in: steps before these, to bring a recurrent state up to date. Where the episode has none, at its beginning, they are masked.
        pad: the last window of an episode is cut short by the end and padded; False leaves it out, and with it short episodes.
        max_items: windows the table holds at most; None has room for as many as the steps could ever make: with `pad` one for each step,
            as every episode could be one step long, which costs memory for each. When it is full the table's remover says what goes.
    """

    kind: ClassVar[str] = "sequences"
    length: int
    period: int | None = None
    burn_in: int = 0
    pad: bool = True
    max_items: int | None = None

    def __post_init__(self) -> None:
        _whole("Sequences", "length", self.length, 1, MOST_STEPS)
        _whole("Sequences", "burn_in", self.burn_in, 0, MOST_STEPS - self.length)
        if self.period is None:
            object.__setattr__(self, "period", self.length)
        _whole("Sequences", "period", self.period, 1, MOST_STEPS)
        if not isinstance(self.pad, bool):
            raise ConfigError(f"Sequences: pad must be True or False, not {self.pad!r}")
        if self.max_items is not None:
            _whole("Sequences", "max_items", self.max_items, 1, (1 << 31) - 1)

    @property
    def window(self) -> int:
        """Steps of one item in a batch."""
        return self.burn_in + self.length

    def cut(self) -> tuple[int, int, int]:
        assert self.period is not None
        return self.burn_in, self.length, self.period

    def most(self, steps: int) -> int:
        assert self.period is not None
        return self.max_items or (steps if self.pad else steps // min(self.length, self.period) + 1)


@dataclass(frozen=True)
class NStep(Items):
    """Transitions over n steps: from each step to the one n later, or to the episode's end.

    `batch` is the step itself and `next`, of the same structure, the step to bootstrap from: leaves of shape `(n, *leaf.shape)`. `returns`
    is the sum of gamma^i r_i over the k steps in between, `discounts` gamma^k, and `terminated` says that the environment ended there: then
    nothing is to be bootstrapped, and `next` is the episode's last step. Otherwise k is n, or less before an end that is not the
    environment's own: the last step of such an episode is only bootstrapped from.

        target = sample.returns + sample.discounts * ~sample.terminated * q_next

    Attributes:
        n: steps. gamma: the discount of one, from 0 to 1.
        reward: path of the leaf that is summed, float32 or float64, of any shape.
        max_items: as in `Sequences`; None is one for each step.
    """

    kind: ClassVar[str] = "nstep"
    n: int = 1
    gamma: float = 0.99
    reward: str = "reward"
    max_items: int | None = None

    def __post_init__(self) -> None:
        _whole("NStep", "n", self.n, 1, MOST_STEPS - 1)
        if isinstance(self.gamma, bool) or not isinstance(self.gamma, (int, float)) or not 0 <= self.gamma <= 1:
            raise ConfigError(f"NStep: gamma must be from 0 to 1, not {self.gamma!r}")
        if not isinstance(self.reward, str):
            raise ConfigError(f"NStep: reward must be the path of a leaf, such as 'reward', not {self.reward!r}")
        if self.max_items is not None:
            _whole("NStep", "max_items", self.max_items, 1, (1 << 31) - 1)

    def cut(self) -> tuple[int, int, int]:
        return 0, self.n + 1, 1

    def most(self, steps: int) -> int:
        return self.max_items or steps


@dataclass(frozen=True)
class Slices(Items):
    """Slices of episodes, chosen when they are sampled: any `length` consecutive steps of one episode, unfinished ones included.

    Items are episodes, as long as they have a step with which a slice can begin: they have the keys and priorities. A batch looks like that
    of `Sequences` without burn-in. `probabilities` are those of slices.

    Attributes:
        length: steps of a slice.
        by: "steps" makes every slice equally likely (the table's sampler has to be "uniform"); "episodes" draws an episode by the table's
            sampler, whichever it is, and then one of its slices.
        pad: slices may begin with the last steps of an episode, too, and are padded; False gives only whole ones, and none of episodes
            shorter than `length`.
    """

    kind: ClassVar[str] = "slices"
    length: int
    by: Literal["steps", "episodes"] = "steps"
    pad: bool = False

    def __post_init__(self) -> None:
        _whole("Slices", "length", self.length, 1, MOST_STEPS)
        if self.by not in ("steps", "episodes"):
            raise ConfigError(f"Slices: by must be 'steps' or 'episodes', not {self.by!r}")
        if not isinstance(self.pad, bool):
            raise ConfigError(f"Slices: pad must be True or False, not {self.pad!r}")

    @property
    def window(self) -> int:
        """Steps of one item in a batch."""
        return self.length

    def cut(self) -> tuple[int, int, int]:
        return 0, self.length, 1

    def most(self, steps: int) -> int:
        return steps if self.pad else steps // self.length + 1


@dataclass(frozen=True)
class FrameStack:
    """The last `n` steps' values of one leaf as one value, the oldest first: shape `(n, *leaf.shape)` instead of `leaf.shape`.

    Frames are stored once and stacked when they are sampled. An episode's first steps have no n - 1 before them.

    Attributes:
        n: frames. leaf: its path.
        fill: what stands there instead: "first" repeats the episode's first frame, "zeros".
    """

    n: int
    leaf: str = "obs"
    fill: Literal["first", "zeros"] = "first"

    def __post_init__(self) -> None:
        _whole("FrameStack", "n", self.n, 1, 256)
        if not isinstance(self.leaf, str):
            raise ConfigError(f"FrameStack: leaf must be the path of a leaf, such as 'obs', not {self.leaf!r}")
        if self.fill not in ("first", "zeros"):
            raise ConfigError(f"FrameStack: fill must be 'first' or 'zeros', not {self.fill!r}")


KINDS: dict[str, type[Items]] = {kind.kind: kind for kind in (Sequences, NStep, Slices)}


def items_from_json(value: dict[str, Any]) -> Items:
    """What `Items.to_json` described."""
    given = dict(value)
    return KINDS[given.pop("kind")](**given)


def stacks_of(spec: Spec, stack: FrameStack | Sequence[FrameStack] | None) -> dict[str, FrameStack]:
    """The stacks by their leaves' paths.

    Raises:
        ConfigError: one is no FrameStack, names no leaf of the step or the same as another, or they fill differently.
    """
    stacks: list[Any] = [] if stack is None else list(stack) if isinstance(stack, (list, tuple)) else [stack]
    by_path: dict[str, FrameStack] = {}
    for one in stacks:
        if not isinstance(one, FrameStack):
            raise ConfigError(f"stack must be FrameStack(4, leaf='obs') or several of them, not {one!r}")
        leaf_index(spec, one.leaf, "FrameStack: leaf")
        if one.leaf in by_path:
            raise ConfigError(f"two FrameStacks are given for leaf {one.leaf!r}; leave one out")
        by_path[one.leaf] = one
    if len({one.fill for one in stacks}) > 1:
        raise ConfigError("FrameStacks of one table must have the same fill")
    return by_path


def leaf_index(spec: Spec, path: str, what: str) -> int:
    """The place of the leaf at `path`. Raises ConfigError."""
    paths = [leaf.path for leaf in spec.leaves]
    if path not in paths:
        raise ConfigError(f"{what} {path!r} is none of the step's, which are {', '.join(map(repr, paths))}{did_you_mean(path, paths)}")
    return paths.index(path)


def _whole(kind: str, what: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not hasattr(type(value), "__index__") or not least <= value <= most:
        raise ConfigError(f"{kind}: {what} must be a whole number from {least} to {most}, not {value!r}")

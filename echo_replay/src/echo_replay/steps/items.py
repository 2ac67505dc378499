"""The kinds of items of a table whose rows are steps: windows of an episode or n-step transitions, with frames stacked when they are read.

    Table("replay", step, capacity=1_000_000, items=Sequences(length=80, period=40, burn_in=20), sampler="prioritized")
    Table("replay", step, capacity=1_000_000, items=NStep(3, gamma=0.99), stack=FrameStack(4, leaf="obs"), sampler="prioritized")

Steps are stored once. An item takes 16 bytes that say where its steps begin, plus the memory that its sampler needs for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from echo_core.base.errors import ConfigError, did_you_mean
from echo_core.spec.spec import Spec

__all__ = ["FrameStack", "Items", "NStep", "Sequences", "Slices", "items_from_json", "stacks_of"]

MOST_STEPS = 1 << 16  # in one item, including the steps before its anchor


@dataclass(frozen=True)
class Items(ABC):
    """Base class of the kinds of items."""

    kind: ClassVar[str]

    @abstractmethod
    def cut(self) -> tuple[int, int, int]:
        """Return how many steps an item has before its anchor, how many from there on, and how many steps are between two anchors."""

    @abstractmethod
    def most(self, steps: int) -> int:
        """Return the largest number of items that `steps` steps can make."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Sequences(Items):
    """Windows of consecutive steps of one episode, for recurrent learners (R2D2, Kapturowski et al. 2019).

    A batch's leaves have shape `(n, burn_in + length, *leaf.shape)`. `mask`, bool of shape `(n, burn_in + length)`, is True where there is
    a step; everywhere else the leaves are zero. A window never contains steps of two episodes.

    Attributes:
        length: number of steps to learn from. The first window begins with the episode's first step.
        period: number of steps from one window to the next; None means `length`, and a smaller number makes windows overlap.
        burn_in: number of steps before these, to bring a recurrent state up to date. At an episode's beginning, where these steps do not
            exist, they are masked.
        pad: whether the last window of an episode is an item, although the end cuts it short; it is padded. False leaves it out, and
            with it episodes that are too short.
        max_items: the largest number of windows that the table holds. None reserves room for as many as the steps could ever make. With
            `pad` that is one for each step, as every episode could be one step long, and each costs memory. When the table is full, its
            remover decides which item is removed.
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
        """Number of steps of one item in a batch."""
        return self.burn_in + self.length

    def cut(self) -> tuple[int, int, int]:
        assert self.period is not None
        return self.burn_in, self.length, self.period

    def most(self, steps: int) -> int:
        assert self.period is not None
        return self.max_items or (steps if self.pad else steps // min(self.length, self.period) + 1)


@dataclass(frozen=True)
class NStep(Items):
    """Transitions over n steps: from each step to the step n later, or to the episode's end.

    `batch` is the step itself, and `next`, of the same structure, is the step to bootstrap from: leaves of shape `(n, *leaf.shape)`. `returns`
    is the sum of gamma^i r_i over the k steps in between, and `discounts` is gamma^k. `terminated` says that the environment ended there; then
    nothing is bootstrapped, and `next` is the episode's last step. Otherwise k is n, or less before an end that the environment did not
    cause; the last step of such an episode is only bootstrapped from.

        target = sample.returns + sample.discounts * ~sample.terminated * q_next

    Attributes:
        n: number of steps. gamma: the discount of one step, from 0 to 1.
        reward: path of the leaf that is summed; float32 or float64, of any shape.
        max_items: as in `Sequences`; None means one for each step.
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
    """Slices of episodes, chosen when they are sampled: any `length` consecutive steps of one episode, including unfinished episodes.

    An item is an episode that has at least one step with which a slice can begin: keys and priorities belong to episodes. A batch looks like
    that of `Sequences` without burn-in. `probabilities` are those of slices.

    Attributes:
        length: number of steps of a slice.
        by: "steps" makes every slice equally likely (the table's sampler has to be "uniform"). "episodes" draws an episode with the
            table's sampler, which may be any, and then one of its slices.
        pad: whether slices may begin with the last steps of an episode, too, and are padded. False gives only complete slices, and none of
            episodes that are shorter than `length`.
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
        """Number of steps of one item in a batch."""
        return self.length

    def cut(self) -> tuple[int, int, int]:
        return 0, self.length, 1

    def most(self, steps: int) -> int:
        return steps if self.pad else steps // self.length + 1


@dataclass(frozen=True)
class FrameStack:
    """The values of one leaf in the last `n` steps as one value, oldest first: shape `(n, *leaf.shape)` instead of `leaf.shape`.

    Frames are stored once and stacked when they are sampled. An episode's first steps do not have n - 1 steps before them.

    Attributes:
        n: number of frames. leaf: its path.
        fill: what the stack contains instead: "first" repeats the episode's first frame, "zeros" means zeros.
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
    """Return the items that `Items.to_json` described."""
    given = dict(value)
    return KINDS[given.pop("kind")](**given)


def stacks_of(spec: Spec, stack: FrameStack | Sequence[FrameStack] | None) -> dict[str, FrameStack]:
    """Return the stacks by the paths of their leaves.

    Raises:
        ConfigError: an entry is no FrameStack, names a leaf that the step does not have, or names the same leaf as another; or the entries
            have different fills.
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
    """Return the index of the leaf at `path`. Raises ConfigError."""
    paths = [leaf.path for leaf in spec.leaves]
    if path not in paths:
        raise ConfigError(f"{what} {path!r} is not a leaf of the step; its leaves are {', '.join(map(repr, paths))}{did_you_mean(path, paths)}")
    return paths.index(path)


def _whole(kind: str, what: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not hasattr(type(value), "__index__") or not least <= value <= most:
        raise ConfigError(f"{kind}: {what} must be a whole number from {least} to {most}, not {value!r}")

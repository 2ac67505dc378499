"""The contract of samplers: a sampler decides which samples come next, and this is all that it needs to implement.

A sampler knows keys and priorities, never data. The table that it serves calls `insert` when a sample
has arrived and `delete` when it is removed, and asks `sample` which keys form the next batch. The
store moves the bytes.

Threading: member functions of one sampler are never called concurrently, so none needs a lock.
Errors: a call that raises has changed nothing, even if only the last key of a batch was wrong.
Keys: whole numbers. A replay table uses its row numbers, from 0 to `capacity - 1`, and the row of a
deleted key comes back later as the key of another sample; a stream counts up to 2**64 - 1.
Arguments are one-dimensional numpy arrays, `uint64` for keys and `float64` for priorities. They
belong to the caller, and the sampler must not keep them.

The costs below are what a batch of n keys may cost in a sampler that holds N; a sampler that is
slower says so in its docstring.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..base.errors import DuplicateKeyError, PluginError, UnknownKeyError
from ..base.option_reader import build_options, fault_of_options
from ..base.returned import without_init
from ..spec.arrays import as_float64, as_numbers

__all__ = ["Keys", "Priorities", "Sampler", "check_held", "check_keys", "check_new", "check_priorities"]

Keys = npt.NDArray[np.uint64]
Priorities = npt.NDArray[np.float64]


class Sampler(ABC):
    """Base of all samplers; a plugin's factory names a subclass.

    Class attributes:
        storage: the kind of table that the sampler needs. `"stream"`: every sample comes out exactly
            once and in order of arrival, so the store hands out the very buffers that the writers
            filled, and never calls the sampler. `"replay"`: samples stay, and come out as often as
            they are drawn. A stream sampler still implements everything below. If its `Options`
            have `capacity: int | None = None`, it serves replay tables as well: built with a
            capacity, its `storage` is `"replay"`.
        replacement: True if one call of `sample` may return a key more than once; then n may be
            larger than `len(self)`. False if its keys differ; then n is at most `len(self)`.
        evicts: True if `victims` says which samples a full table should give up. A table whose
            remover has the same name as such a sampler asks that sampler, and makes no second one.
        refuses_zero: True if a sample with a priority of 0 could never be drawn: its table then
            refuses this priority, and the error names the key.
        Options: a frozen standard-library dataclass, checked by `build_options`. A replay sampler
            has a field `capacity: int`, the number of samples that its table holds.

    `storage`, `replacement` and `refuses_zero` depend on the options in some samplers: read them
    from the instance, if there is one.
    """

    storage: Literal["stream", "replay"]
    replacement: bool = True
    refuses_zero: bool = False
    evicts: ClassVar[bool] = False

    @dataclass(frozen=True)
    class Options:
        """There are no options."""

    options: Any
    """The checked `Options` of this sampler."""

    def __init__(self, **options: Any) -> None:
        """Check and keep the options. The new sampler is empty.

        Raises:
            ConfigError: an option is unknown, missing or of the wrong type.
        """
        self.options = build_options(type(self).Options, options, type(self).__name__)

    if not TYPE_CHECKING:  # a type checker would take every attribute for known

        def __getattr__(self, name: str) -> Any:
            return without_init(self, name)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        storage = getattr(cls, "storage", None)
        if storage not in (None, "stream", "replay"):
            raise TypeError(f'{cls.__name__}.storage must be "stream" or "replay", not {storage!r}')
        if fault := fault_of_options(cls, "Options"):
            raise TypeError(fault)
        names = {field.name for field in dataclasses.fields(cls.Options)}
        if storage == "replay" and "capacity" not in names:
            raise TypeError(f"{cls.__name__}.Options needs a field `capacity: int`, as it replays")

    @classmethod
    def check_class(cls) -> None:
        """Check what a subclass has to declare. Raises PluginError, which names what is missing and how to add it."""
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            raise PluginError(f"{cls.__name__} lacks {', '.join(f'{name}()' for name in missing)}; define what is missing, as its base class describes it")
        if not hasattr(cls, "storage"):
            raise PluginError(f'{cls.__name__} has no storage; add storage = "replay" to it, or "stream"')

    @abstractmethod
    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        """Add n new keys, in order of arrival. Cost: O(n log N).

        Args:
            keys: shape (n,); none is held already, and none occurs twice.
            priorities: shape (n,), finite and not negative; None lets the sampler choose the
                priorities of new samples. Samplers without priorities ignore it.

        Raises:
            DuplicateKeyError: a key is held already or occurs twice; names the first such key.
            ValueError: the key of a replay sampler is not below its capacity (a sampler that can
                hold any key need not check this).
        """

    @abstractmethod
    def delete(self, keys: Keys) -> None:
        """Remove n keys. Cost: O(n log N).

        Args:
            keys: shape (n,); all are held, and none occurs twice.

        Raises:
            UnknownKeyError: a key is not held (or occurs twice); names the first such key.
        """

    @abstractmethod
    def update(self, keys: Keys, priorities: Priorities) -> None:
        """Give n held keys new priorities. Cost: O(n log N).

        Samplers without priorities check the keys and change nothing. The order of arrival stays.

        Args:
            keys: shape (n,), all of them held; if a key occurs twice, its last entry counts.
            priorities: shape (n,), finite and not negative.

        Raises:
            UnknownKeyError: a key is not held; names the first such key.
        """

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        """Draw the n keys of one batch; the contents do not change. Cost: O(n log N).

        The draw depends on nothing but the calls made so far and `rng`, which is the only source
        of randomness: equal samplers with equal generators draw equal keys.

        Args:
            n: at least 1; see `replacement` for the upper bound.
            rng: the sampler may advance it by any amount, but not if it draws nothing.

        Returns:
            `(keys, probabilities)`, two new arrays of shape (n,): the keys in the order drawn, and the
            probability (0 < p <= 1) of each under the distribution of the batch. This is the average
            over the n draws of the batch, without regard to what the other draws returned. With it,
            weights of 1 / (len(self) * p) make the mean of a batch an unbiased estimate. A sampler
            that draws nothing at random returns 1.

        Raises:
            ValueError: n is less than 1, or larger than allowed (with replacement: the sampler is
                empty); names both numbers.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return how many keys are held. Cost: O(1)."""

    @abstractmethod
    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return everything that `restore` needs, as plain numeric arrays (no object dtype). Cost: O(N).

        The arrays are copies: later calls do not change them. They do not contain the options.
        """

    @abstractmethod
    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Replace all contents by those that `state()` returned. Cost: O(N log N).

        Afterwards this sampler answers every call like the sampler that the state was taken from.

        Raises:
            ValueError: an array is missing, superfluous or inconsistent; names it.
        """

    def moved(self, state: Mapping[str, np.ndarray[Any, Any]], rows: Keys) -> dict[str, np.ndarray[Any, Any]]:
        """Return a `state()` in which each key k is `rows[k]`, for a table whose items get other rows, because a checkpoint is restored into another
        capacity. Changes nothing. The new keys are below the `capacity` of this sampler. Only replay samplers need it.

        Raises:
            ValueError: this sampler cannot do that, which is the answer of one that does not override this method.
        """
        raise ValueError(f"{type(self).__name__} does not know how its state moves to other rows, as it has no moved(); restore into the same capacity")

    def victims(self, n: int) -> Keys:
        """Return the n keys that a full table gives up first, least valuable first. Changes nothing.

        Only a sampler that `evicts` has this method. n is from 1 to `len(self)`. Cost: O(n log N).

        Raises:
            ValueError: n is less than 1 or larger than the number of keys held; names both numbers.
        """
        raise NotImplementedError(f"{type(self).__name__} leaves it to a remover which sample goes")

    def mass(self) -> float | None:
        """Return the sum of the weights that a draw chooses from: a key of weight w is drawn with probability w / mass. Cost: O(1).

        Several samplers then draw like one: take each with the probability mass / (sum of all masses), and multiply the probabilities
        that it reports by this one. A sampler of equal weights returns its number of keys, and 0.0 says that nothing can be drawn.
        None says that there is no such sum, and is what a sampler answers that does not override this method. It is right for a
        sampler that draws nothing at random, and for one whose probabilities are not the shares of a single sum.
        """
        return None

    def published(self, version: int) -> None:
        """Take note that this version of the policy was published; for samplers whose samples age in versions. The table calls it."""
        return

    def native(self) -> object | None:
        """Return a PyCapsule of include/echo_sampler.h, through which a table calls a compiled replay sampler
        without Python; None for a sampler written in Python. Both interfaces work on the same contents."""
        return None

    @property
    def capacity(self) -> int | None:
        """The number of samples that a replay table holds; None for a stream."""
        return getattr(self.options, "capacity", None)


def check_keys(keys: npt.ArrayLike) -> Keys:
    """Return `keys` as a one-dimensional uint64 array; for samplers that accept other integers too.

    Raises:
        TypeError: they are not whole numbers.
        ValueError: they have another shape, or one is negative.
    """
    try:
        array = as_numbers(keys, "keys")
    except ValueError as error:
        raise TypeError(str(error)) from error
    if array.size == 0 and array.ndim == 1:
        return array.astype(np.uint64)
    if array.dtype.kind not in "ui":
        raise TypeError(f"keys must be whole numbers from 0 to 2**64 - 1, not {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"keys must have one dimension, not shape {array.shape}")
    if array.dtype.kind == "i" and (array < 0).any():
        raise ValueError(f"key {array[array < 0][0]} is negative; keys go from 0 to 2**64 - 1")
    return np.ascontiguousarray(array, dtype=np.uint64)


def check_new(keys: npt.ArrayLike, held: Container[int]) -> list[int]:
    """Return `keys` as a list, after checking that they may be inserted beside those `held`.

    Raises:
        DuplicateKeyError: a key is held or occurs twice; names the first.
        TypeError, ValueError: as `check_keys`.
    """
    new: list[int] = check_keys(keys).tolist()
    seen: set[int] = set()
    for key in new:
        if key in held or key in seen:
            where = "is held already" if key in held else "occurs twice"
            raise DuplicateKeyError(f"key {key} {where}; every sample needs a key of its own")
        seen.add(key)
    return new


def check_held(keys: npt.ArrayLike, held: Container[int], once: bool = False) -> list[int]:
    """Return `keys` as a list, after checking that all are `held`; with `once`, for `delete`, none may occur twice.

    Raises:
        UnknownKeyError: a key is not held, or occurs twice; names the first.
        TypeError, ValueError: as `check_keys`.
    """
    found: list[int] = check_keys(keys).tolist()
    seen: set[int] = set()
    for key in found:
        if key not in held:
            raise UnknownKeyError(f"key {key} is not held; it was never inserted or is deleted")
        if once and key in seen:
            raise UnknownKeyError(f"key {key} occurs twice; it can be deleted only once")
        seen.add(key)
    return found


def check_priorities(priorities: npt.ArrayLike, keys: Keys, refuses_zero: bool = False, what: str = "key") -> Priorities:
    """Return `priorities` as a float64 array that fits `keys`. `what` says what the numbers in `keys` are, for the error about a bad priority.

    Raises:
        ValueError: the shape is not that of `keys`, or a priority is negative, not finite, or 0 where the sampler `refuses_zero`.
    """
    array = np.atleast_1d(as_float64(priorities, "priorities"))
    if array.shape != keys.shape:
        raise ValueError(
            f"{keys.size} {what}s need priorities of shape {keys.shape}, not {array.shape}"
        )
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        i = int(bad.argmax())
        raise ValueError(
            f"priority {array[i]} of {what} {keys[i]} must be finite and not negative"
        )
    if refuses_zero and not array.all():
        i = int((array == 0).argmax())
        raise ValueError(must_be_positive(f"priority {array[i]} of {what} {keys[i]}"))
    return array


def must_be_positive(priority: str) -> str:
    """Return the text that says why a table whose sampler `refuses_zero` refuses `priority`."""
    return f"{priority} must be positive: with 0 it would never be drawn; give it a positive one, or the sampler an eps"

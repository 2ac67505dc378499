"""The description of a replay table: its storage, sampler, remover and rate limiter."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

from echo_core.base.errors import ConfigError, FileWriteError
from echo_core.base.writing import writing
from echo_core.config.sections import PluginChoice
from echo_core.plugins import discovery
from echo_core.plugins.sampler_choice import A_SAMPLER, make_sampler
from echo_core.spec.ragged import RaggedSpec, has_ragged
from echo_core.spec.spec import Spec
from echo_core.store.sampler import Sampler

from ..requests.table_operations import TableOperations
from ..steps.items import FrameStack, Items, Slices
from ..steps.step_layout import Layout
from ..steps.step_table import StepTable
from ..steps.steps import Steps
from ..tables.policy_lag import Lags
from ..tables.rate_limiters import MinSize, RateLimiter
from ..tables.records.record_table import RecordTable, pool_bytes
from ..tables.replay_table import ReplayTable

__all__ = ["Table", "placed"]

MAX_CAPACITY = (1 << 31) - 1
MAX_SEED = (1 << 128) - 1
NAME_LIMIT = 64
EVENLY = "uniform"  # the sampler for `Slices(by="steps")`, which makes its draws: this sampler prefers no row
_serving: dict[int, tuple[weakref.ref[Sampler], weakref.ref[ReplayTable]]] = {}  # by the sampler's id, as samplers need not be hashable
OLDEST = "fifo"  # the built-in remover: it removes the oldest item and needs no installed sampler


@dataclass(eq=False)
class Table:
    """A description of a table, for `Server(tables=[...])`; `server.tables[name]` then is the table itself, a `ReplayTable`. `open()` makes one
    without a server.

    Args:
        name: the name that workers use in `send(sample, table=name)`.
        example: a pytree of numpy arrays that shows one sample of this table.
        capacity: the most items that the table holds; with `items`, the most steps.
        sampler: selects the items of the next batch: a sampler's name, `{"type": name, ...}`, or a `Sampler` of the same capacity.
        remover: selects the item to remove when the table is full: "fifo" removes the oldest; a sampler removes the one it draws next.
            If the sampler removes items itself (it has `evicts`, like "hot_cold"), give its name here too, and it decides.
        rate_limiter: decides when inserts and samples wait; None means `MinSize(1)`.
        max_times_sampled: an item is removed after this many samples; 0 keeps it. None means 1 with `Queue` and `Stack`, otherwise 0.
        max_bytes: the most bytes of all items. It holds in addition to `capacity`; the limit that is reached first counts. For samples of varying
            length, None is what `capacity` of the longest ones need, but at most a quarter of the memory that is available.
        initial: so many items (steps, with `items`) get their memory when the table is made; the others get it as they are first used, in
            parts of 4 MiB, for which only the writer waits. None provides all of it at once: nothing is slower while the table fills,
            and a lack of memory shows at the start. The memory of a full table has to be available in any case.
        beta: exponent of importance weights, from 0 to 1; None takes the sampler's `beta` option, or 0.4.
        seed: seed of the table's random number generator; None draws one.
        storage: path of a new file that holds the items, for tables larger than memory. The file is unlinked as soon as it is made, and
            its space is reserved.
        policy_versions: keep the policy version that made each item. `Sample.info.policy_versions` has the versions, and `stats()` has a
            histogram of the lags. `max_policy_lag` and `lag_weight` imply it.
        max_policy_lag: items that lag further behind the last published version are removed at once, and later arrivals that are as
            old are removed too.
        lag_weight: multiplies an item's importance weight once for each version that it lags behind; above 0, at most 1.
        lease_timeout: seconds in which a learner has to `ack` the keys that it received; keys that it does not `ack` are given out
            again. It is for tables whose items are sampled once (`Queue`, `max_times_sampled=1`); with None, no `ack` is needed.
        items: None, or the kind of items (`Sequences(...)`, `NStep(...)` or `Slices(...)`) if `example` is one step of an episode and
            workers send `Steps`. Such a table keeps no policy versions.
        stack: `FrameStack(4, leaf="obs")`, or several of them: leaves whose last values are stacked when they are sampled.

    Raises:
        ConfigError: some arguments do not fit together; the message names the table.
    """

    answered_by: ClassVar[type[TableOperations]] = TableOperations  # the requests of clients

    name: str
    example: Any = field(default=None, repr=False)
    _: KW_ONLY
    capacity: int
    sampler: Sampler | str | Mapping[str, Any] | PluginChoice
    remover: Sampler | str | Mapping[str, Any] | PluginChoice = OLDEST
    rate_limiter: RateLimiter | None = None
    max_times_sampled: int | None = None
    max_bytes: int | None = None
    initial: int | None = None
    beta: float | None = None
    seed: int | None = None
    storage: Path | str | None = None
    policy_versions: bool = False
    max_policy_lag: int | None = None
    lag_weight: float = 1.0
    lease_timeout: float | None = None
    items: Items | None = None
    stack: FrameStack | tuple[FrameStack, ...] | list[FrameStack] | None = None

    def __post_init__(self) -> None:
        self.where = self.origin = ""
        if self.example is not None:
            self._check()

    def _check(self) -> None:
        """Check what fits together, and derive `spec`, `rows` (items held at most), `layout`, `steps`, `limiter` and `lags`."""
        name, items, max_policy_lag = self.name, self.items, self.max_policy_lag
        if not isinstance(name, str) or not 1 <= len(name) <= NAME_LIMIT or not name.isprintable():
            raise ConfigError(f"a table's name must be printable text of 1 to {NAME_LIMIT} characters, not {name!r}")
        ragged = not isinstance(self.example, Steps) and has_ragged(self.example)
        self.records = RaggedSpec.from_example(self.example) if ragged else None  # of samples of varying length; `spec` is what travels then
        self.spec = self.records.chunk_spec if self.records else self.example.step if isinstance(self.example, Steps) else Spec.from_example(self.example)
        self.rows = _whole(name, "capacity", self.capacity, 1, MAX_CAPACITY)
        if self.records is not None:
            self._check_records(self.records)
        elif self.max_bytes is not None:
            rows = _whole(name, "max_bytes", self.max_bytes, 1, 1 << 62) // max(1, self.spec.sample_bytes)
            if rows < 1:
                raise ConfigError(f"table {name!r}: max_bytes={self.max_bytes} is too small for one item of {self.spec.sample_bytes} bytes; raise it")
            self.rows = min(self.rows, rows)
        if self.initial is not None:
            self.initial = min(_whole(name, "initial", self.initial, 1, self.capacity), self.rows)
            if self.storage is not None:
                raise ConfigError(f"table {name!r}: initial is for tables in memory, and storage reserves a whole file; leave out one of them")
        self.layout: Layout | None = None
        self.steps = 0
        if items is not None:
            self.layout, self.steps = _layout(name, self.spec, items, self.stack), self.rows
            needed = self.layout.lookback + self.layout.forward
            if self.steps < needed:
                raise ConfigError(f"table {name!r}: one item has {needed} steps, more than capacity={self.steps}; raise capacity")
            self.rows = min(items.most(self.steps), MAX_CAPACITY)
        elif self.stack is not None:
            raise ConfigError(f"table {name!r}: stack={self.stack!r} needs consecutive steps; give the table items=NStep(...)")
        self.limiter = MinSize(1) if self.rate_limiter is None else self.rate_limiter
        if not isinstance(self.limiter, RateLimiter):
            raise ConfigError(f"table {name!r}: rate_limiter must be a RateLimiter such as MinSize(1), not {self.rate_limiter!r}")
        uses = (1 if self.limiter.once else 0) if self.max_times_sampled is None else self.max_times_sampled
        self.uses = _whole(name, "max_times_sampled", uses, 0, (1 << 31) - 1)
        if isinstance(items, Slices) and items.by == "steps" and (self.uses or _name_of(self.sampler) != EVENLY):
            raise ConfigError(
                f"table {name!r}: Slices(by='steps') makes every slice equally likely, so it needs sampler={EVENLY!r} and no "
                f"max_times_sampled; use these, or Slices(by='episodes')"
            )
        if self.beta is not None and (isinstance(self.beta, bool) or not isinstance(self.beta, Real) or not 0 <= self.beta <= 1):
            raise ConfigError(f"table {name!r}: beta must be from 0 to 1, not {self.beta!r}")
        self.lags: Lags | None = None
        if max_policy_lag is not None:
            max_policy_lag = _whole(name, "max_policy_lag", max_policy_lag, 0, (1 << 63) - 1)
        if isinstance(self.lag_weight, bool) or not isinstance(self.lag_weight, (int, float)) or not 0 < self.lag_weight <= 1:
            raise ConfigError(f"table {name!r}: lag_weight must be above 0 and at most 1, not {self.lag_weight!r}")
        if self.policy_versions or max_policy_lag is not None or self.lag_weight != 1:
            self.lags = Lags(max_policy_lag, float(self.lag_weight))
            if items is not None:
                raise ConfigError(
                    f"table {name!r}: a table with items=... keeps no policy versions; make the version a leaf of the step, and leave out "
                    f"policy_versions, max_policy_lag and lag_weight"
                )
        if self.lease_timeout is not None:
            if isinstance(self.lease_timeout, bool) or not isinstance(self.lease_timeout, (int, float)) or not 1e-3 <= self.lease_timeout <= 1e9:
                raise ConfigError(f"table {name!r}: lease_timeout must be a number of seconds from 0.001 to 1e9, not {self.lease_timeout!r}")
            if self.uses != 1:
                raise ConfigError(
                    f"table {name!r}: lease_timeout works only if items are sampled once; give the table rate_limiter=Queue(...) or max_times_sampled=1"
                )
        if self.seed is not None:
            self.seed = _whole(name, "seed", self.seed, 0, MAX_SEED)
        if self.storage is not None and not isinstance(self.storage, (str, os.PathLike)):
            raise ConfigError(f"table {name!r}: storage must be the path of a new file, not {self.storage!r}")
        for what, choice in (("sampler", self.sampler), ("remover", self.remover)):
            if not isinstance(choice, (Sampler, str, Mapping)):
                raise ConfigError(f"table {name!r}: {what} must be {A_SAMPLER}, not {choice!r}")

    def _check_records(self, records: RaggedSpec) -> None:
        """Check what does not go together with samples of varying length, and derive `page_bytes`, the bytes of all their records."""
        for what, given in (("items", self.items), ("stack", self.stack), ("initial", self.initial)):
            if given is not None:
                raise ConfigError(f"table {self.name!r}: {what} is for samples of one size, and the example has leaves that are Ragged; leave it out")
        if self.max_bytes is not None:
            _whole(self.name, "max_bytes", self.max_bytes, 1, 1 << 62)
        self.page_bytes = pool_bytes(records, self.rows, self.max_bytes)

    def for_example(self, example: Any) -> Table:
        """This table of a configuration, for samples like `example`.

        Raises:
            ConfigError: something does not fit together; the message names the file. PluginError: sampler or remover is not installed.
        """
        with placed(self.where, self.origin):
            return replace(self, example=example, sampler=self._checked(self.sampler), remover=self._checked(self.remover))

    def check_plugins(self) -> None:
        """Load the sampler and the remover that a configuration names, and check their options. Raises as `for_example`."""
        self._checked(self.sampler)
        self._checked(self.remover)

    def _checked(self, choice: Any) -> Any:
        if not isinstance(choice, PluginChoice):
            return choice
        checked = choice.checked(capacity=self.capacity)  # the table may have fewer rows, by max_bytes: it gives their number itself
        return {"type": choice.type, **{key: value for key, value in checked.items() if key in choice.options}}

    @property
    def sampler_name(self) -> str | None:
        """The name of the sampler's plugin; None if the sampler was given as an object."""
        return _name_of(self.sampler)

    def open(self, batch_size: int = 1, plugins: discovery.PluginHost | None = None) -> ReplayTable:
        """Make the table itself, which works without a `Server` in this process: `submit`, `sample`, `update_priorities` and so on.

        Args:
            batch_size: items of a batch, if `sample` gets no number.
            plugins: where samplers are looked up; None uses every installed plugin that ECHO_DISABLE_PLUGINS does not name.

        Raises:
            PluginError: the sampler or remover is not installed. MemoryError: the table does not fit into memory.
            FileWriteError: the storage does not fit onto the disk, or a file of its path already exists.
            ConfigError: no batch could ever be drawn.
        """
        if self.example is None:
            raise ConfigError(f"table {self.name!r} has no example: Table({self.name!r}, example, ...)")
        plugins = plugins or discovery.default
        sampler = make_sampler(self.sampler, plugins, self.rows)
        if sampler.storage != "replay" or sampler.capacity != self.rows:
            raise ConfigError(
                f"table {self.name!r}: sampler {type(sampler).__name__} is for {sampler.capacity or 'a stream of'} samples, "
                f"but the table holds {self.rows}; give them the same capacity"
            )
        remover: Sampler | None = None
        if sampler.evicts and not isinstance(self.remover, Sampler) and self.remover in (self.sampler_name, {"type": self.sampler_name}, self.sampler):
            remover = sampler
        elif self.remover != OLDEST:
            remover = make_sampler(self.remover, plugins, self.rows)
        owned = {id(one): one for one in (sampler, remover) if one is not None}
        for own in owned.values():
            if len(own) or _serves(own):
                raise ConfigError(
                    f"table {self.name!r}: this {type(own).__name__} object already serves a table; make one for each table, or give a name and "
                    f"options, such as {{'type': 'prioritized'}}, from which every table makes its own sampler"
                )
        if remover is sampler and not sampler.evicts:
            raise ConfigError(f"table {self.name!r}: one {type(sampler).__name__} object cannot be both sampler and remover; give the table two objects")
        if self.records is not None and (needed := batch_size * pool_bytes(self.records, 1, None)) > self.page_bytes:
            raise ConfigError(
                f"table {self.name!r}: a batch of {batch_size} of the longest samples needs {needed:,} bytes, more than max_bytes={self.page_bytes:,}; raise "
                f"max_bytes, or lower batch_size or most= of the example's axes"
            )
        reason = self.limiter.refusal(batch_size, self.rows, sampler.replacement)
        uses = self.uses
        if reason is None and uses:
            if uses * self.rows < batch_size:
                reason = f"{self.rows} items of {uses} samples each are too few; raise capacity or max_times_sampled"
            elif self.limiter.samples_per_insert > uses and self.limiter.max_diff < float("inf"):
                reason = f"{self.limiter} needs more samples of each item than max_times_sampled={uses} allows; raise it"
        if reason:
            raise ConfigError(f"table {self.name!r} could never give a batch of {batch_size}: {reason}")
        beta = self.beta if self.beta is not None else getattr(sampler.options, "beta", None)
        descriptor = -1
        try:
            if self.storage is not None:
                with writing(self.storage, f"it is the storage of table {self.name!r}"):
                    descriptor = os.open(self.storage, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                    os.unlink(self.storage)
                self._reserve(descriptor, self.storage)
            kind = RecordTable if self.records is not None else ReplayTable if self.layout is None else StepTable
            table = kind(self, batch_size, sampler, remover, 0.4 if beta is None else beta, descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)  # the mapping keeps the file alive
        for key, own in owned.items():
            _serving[key] = weakref.ref(own, partial(_gone, key)), weakref.ref(table)
        return table

    def _reserve(self, descriptor: int, path: str | os.PathLike[str]) -> None:
        """Reserve the storage's space. Python does it, as the native code, which adds bytes for alignment, knows neither table name nor path."""
        size = max(1, (self.steps or self.rows) * self.spec.sample_bytes) if self.records is None else self.page_bytes
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            text = f"table {self.name!r}: {size / 2**30:.3g} GiB of storage do not fit ({error.strerror}); free disk space, or lower capacity or max_bytes"
            raise FileWriteError(error.errno, f"{text}: {os.fspath(path)}", os.fspath(path)) from None


def _gone(key: int, _: object) -> None:
    _serving.pop(key, None)


def _serves(sampler: Sampler) -> bool:
    """Whether a table of this process uses this sampler."""
    known, table = _serving.get(id(sampler), (None, None))
    return known is not None and table is not None and known() is sampler and table() is not None


def _name_of(sampler: object) -> str | None:
    return sampler.get("type") if isinstance(sampler, Mapping) else sampler if isinstance(sampler, str) else None


def _layout(table: str, spec: Spec, items: Items, stack: FrameStack | Sequence[FrameStack] | None) -> Layout:
    try:
        return Layout(spec, items, stack)
    except ConfigError as error:
        raise ConfigError(f"table {table!r}: {error}") from error


def _whole(table: str, what: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not hasattr(type(value), "__index__") or not least <= value <= most:
        raise ConfigError(f"table {table!r}: {what} must be a whole number from {least} to {most}, not {value!r}")
    return int(value)


@contextmanager
def placed(where: str, origin: str) -> Iterator[None]:
    """Add the place in the configuration to errors of code that does not know it. Errors that name a place already stay unchanged."""
    try:
        yield
    except ConfigError as error:
        if where.removesuffix(".stack") in str(error):
            raise
        raise ConfigError(": ".join(part for part in (origin, where, str(error)) if part)) from error

"""Replay tables in a configuration: the keys of `[[server.tables]]`, and the `Table`s they describe once an example is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import rate_limiters
from .errors import ConfigError, did_you_mean
from .fields import build_options
from .sections import PluginChoice

if TYPE_CHECKING:
    from .plugins import PluginHost
    from .table import Table

__all__ = ["LIMITERS", "TableConfig", "table_configs", "with_tables"]


@dataclass(frozen=True)
class MinSize:
    min_size_to_sample: int


@dataclass(frozen=True)
class SampleToInsertRatio:
    samples_per_insert: float
    min_size_to_sample: int
    error_buffer: float | tuple[float, float]


@dataclass(frozen=True)
class Queue:
    size: int


# What `rate_limiter = { type = ... }` may name: its options, and what is made of them.
LIMITERS: Mapping[str, tuple[type[Any], Callable[..., rate_limiters.RateLimiter]]] = {
    "MinSize": (MinSize, rate_limiters.MinSize),
    "SampleToInsertRatio": (SampleToInsertRatio, rate_limiters.SampleToInsertRatio),
    "SamplesPerInsert": (SampleToInsertRatio, rate_limiters.SamplesPerInsert),
    "Queue": (Queue, rate_limiters.Queue),
    "Stack": (Queue, rate_limiters.Stack),
}


@dataclass(frozen=True)
class TableConfig:
    """One of `[[server.tables]]`: the arguments of `Table`, without its example."""

    name: str
    capacity: int
    sampler: PluginChoice
    remover: PluginChoice | Literal["fifo"] = "fifo"
    rate_limiter: rate_limiters.RateLimiter | None = None
    max_times_sampled: int | None = None
    max_bytes: int | None = None
    beta: float | None = None
    seed: int | None = None
    storage: Path | None = None
    policy_versions: bool = False
    max_policy_lag: int | None = None
    lag_weight: float = 1.0
    lease_timeout: float | None = None
    where: str = field(default="server.tables", repr=False, compare=False)
    origin: str = field(default="", repr=False, compare=False)

    def make(self, example: Any) -> Table:
        """The table for samples like `example`.

        Raises:
            ConfigError: something does not fit together, naming the file. PluginError: sampler or remover is not installed.
        """
        from .table import Table

        given = {key: getattr(self, key) for key in KEYS if key not in ("name", "sampler", "remover")}
        try:
            return Table(self.name, example, sampler=self._plugin(self.sampler), remover=self._plugin(self.remover), **given)
        except ConfigError as error:
            if self.where in str(error):
                raise
            raise ConfigError(": ".join(part for part in (self.origin, self.where, str(error)) if part)) from error

    def check(self) -> None:
        """Load sampler and remover and check their options. Raises as `make`."""
        self._plugin(self.sampler)
        self._plugin(self.remover)

    def _plugin(self, choice: PluginChoice | str) -> str | dict[str, Any]:
        if isinstance(choice, str):
            return choice
        checked = choice.checked(capacity=self.capacity)  # the table may have fewer rows, by max_bytes: it says how many itself
        return {"type": choice.type, **{key: value for key, value in checked.items() if key in choice.options}}


KEYS = tuple(f.name for f in dataclasses.fields(TableConfig) if f.name not in ("where", "origin"))


def table_configs(tables: Mapping[str, Any], origins: Mapping[str, str], host: PluginHost) -> tuple[TableConfig, ...]:
    """The tables that a configuration describes, by their numbers.

    Raises:
        ConfigError: a key is unknown or missing, a value does not fit, or two tables have one name; with origin, key and suggestion.
    """
    made: dict[str, TableConfig] = {}
    for number in sorted(tables, key=lambda key: (len(key), key)):
        where = f"server.tables.{number}"
        origin = origins.get(where, "")
        given = tables[number]
        if not number.isdigit() or not isinstance(given, Mapping):
            raise ConfigError(f"{origin}: {where}: server.tables is a list of tables: write [[server.tables]] before each")
        keys = dict(given)
        for key in ("where", "origin"):
            if key in keys:
                raise ConfigError(f"{origins.get(f'{where}.{key}', origin)}: {where}.{key}: unknown key; known here: {', '.join(KEYS)}")
        for key in ("sampler", "remover"):
            if key == "remover" and keys.get(key) == {"type": "fifo"}:
                keys[key] = "fifo"  # the table's own, for which no plugin is needed
            elif key in keys:
                keys[key] = _choice(keys[key], f"{where}.{key}", origins, host)
        if "rate_limiter" in keys:
            keys["rate_limiter"] = _limiter(keys["rate_limiter"], f"{where}.rate_limiter", origins)
        table = build_options(TableConfig, {**keys, "where": where, "origin": origin}, where, origins)
        if table.name in made:
            raise ConfigError(f"{origin}: {where}.name: {made[table.name].where} is called {table.name!r} already; give each its own name")
        made[table.name] = table
    return tuple(made.values())


def with_tables(arguments: dict[str, Any], example: Any, examples: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """What `Server` takes, of `config.server_arguments`: the example, and arguments in which each `TableConfig` has become a `Table`.

    Args:
        example: of every table that is not in `examples`.
        examples: by the tables' names.

    Raises:
        ConfigError: a table has no example, or an example no table.
    """
    tables = arguments.get("tables")
    if tables is None or not any(isinstance(table, TableConfig) for table in tables):
        return example, arguments
    examples = examples or {}
    names = [table.name for table in tables]
    for name in examples:
        if name not in names:
            raise ConfigError(f"an example for a table {name!r}, which the configuration does not have{did_you_mean(name, names)}")
    made = []
    for table in tables:
        one = examples.get(table.name, example)
        if one is None:
            raise ConfigError(
                f"table {table.name!r} has no example: Server.from_config(config, example), or examples={{{table.name!r}: example}}"
            )
        made.append(table.make(one))
    return None, {**arguments, "tables": made}


def _choice(table: Any, where: str, origins: Mapping[str, str], host: PluginHost) -> PluginChoice:
    options = dict(table) if isinstance(table, Mapping) else {}
    name = options.pop("type", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f'{origins.get(where, "")}: {where}: has no type; add type = "uniform"')
    return PluginChoice("sampler", str(name), options, where, origins, host)


def _limiter(table: Any, where: str, origins: Mapping[str, str]) -> rate_limiters.RateLimiter:
    origin = origins.get(f"{where}.type") or origins.get(where, "")
    options = dict(table) if isinstance(table, Mapping) else {}
    name = options.pop("type", None)
    if not isinstance(name, str):
        raise ConfigError(f'{origin}: {where}: must be a table such as {{ type = "MinSize", min_size_to_sample = 1000 }}')
    if name not in LIMITERS:
        hint = did_you_mean(name, LIMITERS) or f"; there are {', '.join(LIMITERS)}"
        raise ConfigError(f"{origin}: {where}.type: no rate limiter {str(name)!r}{hint}")
    kind, make = LIMITERS[name]
    checked = build_options(kind, options, where, origins)
    try:
        return make(**{f.name: getattr(checked, f.name) for f in dataclasses.fields(kind)})
    except ConfigError as error:
        raise ConfigError(f"{origin}: {where}: {error}") from error

"""Replay tables in a configuration: reads the keys of `[[server.tables]]`, and makes `Table`s of them once an example is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..base.errors import ConfigError, did_you_mean
from ..base.option_reader import build_options, option_fields
from ..store.replay import rate_limiters
from ..store.steps.items import Items, NStep, Sequences, Slices
from .sections import PluginChoice
from .table import Table, placed

if TYPE_CHECKING:
    from ..plugins.discovery import PluginHost

__all__ = ["ITEMS", "KEYS", "LIMITERS", "table_configs", "with_tables"]


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


# The types that `rate_limiter = { type = ... }` may name: their options, and the function that makes the limiter.
LIMITERS: Mapping[str, tuple[type[Any], Callable[..., rate_limiters.RateLimiter]]] = {
    "MinSize": (MinSize, rate_limiters.MinSize),
    "SampleToInsertRatio": (SampleToInsertRatio, rate_limiters.SampleToInsertRatio),
    "SamplesPerInsert": (SampleToInsertRatio, rate_limiters.SamplesPerInsert),
    "Queue": (Queue, rate_limiters.Queue),
    "Stack": (Queue, rate_limiters.Stack),
}

# The types that `items = { type = ... }` may name.
ITEMS: Mapping[str, type[Items]] = {kind.__name__: kind for kind in (Sequences, NStep, Slices)}


KEYS = tuple(name for name in option_fields(Table) if name != "example")


def table_configs(tables: Mapping[str, Any], origins: Mapping[str, str], host: PluginHost) -> tuple[Table, ...]:
    """The tables that a configuration describes, in the order of their numbers.

    Raises:
        ConfigError: a key is unknown or missing, a value does not fit, or two tables have the same name; the message has origin, key and
            a suggestion.
    """
    made: dict[str, Table] = {}
    for number in sorted(tables, key=lambda key: (len(key), key)):
        where = f"server.tables.{number}"
        origin = origins.get(where, "")
        given = tables[number]
        if not number.isdigit() or not isinstance(given, Mapping):
            raise ConfigError(f"{origin}: {where}: server.tables is a list of tables: write [[server.tables]] before each")
        keys = dict(given)
        if "example" in keys:
            raise ConfigError(f"{origins.get(f'{where}.example', origin)}: {where}.example: unknown key; known here: {', '.join(KEYS)}")
        for key in ("sampler", "remover"):
            if key == "remover" and keys.get(key) == {"type": "fifo"}:
                keys[key] = "fifo"  # the table's built-in remover needs no plugin
            elif key in keys:
                keys[key] = _choice(keys[key], f"{where}.{key}", origins, host)
        if "rate_limiter" in keys:
            keys["rate_limiter"] = _limiter(keys["rate_limiter"], f"{where}.rate_limiter", origins)
        if "items" in keys:
            keys["items"] = _items(keys["items"], f"{where}.items", origins)
        with placed(f"{where}.stack", origins.get(f"{where}.stack", origin)):
            table = build_options(Table, keys, where, origins)
        table.where, table.origin = where, origin
        if table.name in made:
            raise ConfigError(f"{origin}: {where}.name: {made[table.name].where} already has the name {table.name!r}; give each table its own name")
        made[table.name] = table
    return tuple(made.values())


def with_tables(arguments: dict[str, Any], example: Any, examples: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """Turn the result of `config.server_arguments` into the example and the arguments of `Server`: each `Table` gets its example.

    Args:
        example: the example of every table that is not in `examples`.
        examples: examples by the tables' names.

    Raises:
        ConfigError: a table has no example, or an example belongs to no table.
    """
    tables = arguments.get("tables")
    if tables is None or not any(table.example is None for table in tables):
        return example, arguments
    examples = examples or {}
    names = [table.name for table in tables]
    for name in examples:
        if name not in names:
            raise ConfigError(f"examples has a table {name!r} that is not in the configuration{did_you_mean(name, names)}")
    made = []
    for table in tables:
        one = examples.get(table.name, example)
        if one is None:
            raise ConfigError(
                f"table {table.name!r} has no example; use Server.from_config(config, example) or examples={{{table.name!r}: example}}"
            )
        made.append(table.for_example(one))
    return None, {**arguments, "tables": made}


def _choice(table: Any, where: str, origins: Mapping[str, str], host: PluginHost) -> PluginChoice:
    options = dict(table) if isinstance(table, Mapping) else {}
    name = options.pop("type", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f'{origins.get(where, "")}: {where}: the key "type" is missing; add type = "uniform"')
    return PluginChoice("sampler", str(name), options, where, origins, host)


def _limiter(table: Any, where: str, origins: Mapping[str, str]) -> rate_limiters.RateLimiter:
    origin, name, options = _typed(table, where, origins, "rate limiter", LIMITERS, '{ type = "MinSize", min_size_to_sample = 1000 }')
    kind, make = LIMITERS[name]
    with placed(where, origin):
        checked = build_options(kind, options, where, origins)
        return make(**{f.name: getattr(checked, f.name) for f in dataclasses.fields(kind)})


def _items(table: Any, where: str, origins: Mapping[str, str]) -> Items:
    origin, name, options = _typed(table, where, origins, "kind of items", ITEMS, '{ type = "NStep", n = 3 }')
    with placed(where, origins.get(where, origin)):
        return build_options(ITEMS[name], options, where, origins)


def _typed(
    table: Any, where: str, origins: Mapping[str, str], what: str, known: Mapping[str, Any], example: str
) -> tuple[str, str, dict[str, Any]]:
    """The origin of a table with a `type`, the known type that it names, and its other keys."""
    origin = origins.get(f"{where}.type") or origins.get(where, "")
    options = dict(table) if isinstance(table, Mapping) else {}
    name = options.pop("type", None)
    if not isinstance(name, str):
        raise ConfigError(f"{origin}: {where}: must be a table such as {example}")
    if name not in known:
        hint = did_you_mean(name, known) or f"; the types are {', '.join(known)}"
        raise ConfigError(f"{origin}: {where}.type: no {what} {str(name)!r}{hint}")
    return origin, str(name), options

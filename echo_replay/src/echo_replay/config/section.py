"""Replay tables in a configuration: reads the keys of `[[server.tables]]`, and describes them for the schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import make_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from echo_core.base.errors import ConfigError, did_you_mean
from echo_core.base.option_reader import build_options, option_fields
from echo_core.config.schema import options_schema, typed_schema
from echo_core.config.sections import PluginChoice

from ..steps.items import Items, NStep, Sequences, Slices
from ..tables.rate_limiters import MinSize, Queue, RateLimiter, SamplesPerInsert, SampleToInsertRatio, Stack
from .table import Table, placed

if TYPE_CHECKING:
    from echo_core.plugins.discovery import PluginHost

__all__ = ["ITEMS", "KEYS", "LIMITERS", "table_configs", "table_schema"]


def _arguments(kind: type[Any]) -> type[Any]:
    """The arguments of `kind`, as a dataclass for the option reader."""
    hints = get_type_hints(kind.__init__)
    del hints["return"]
    return make_dataclass(kind.__name__, hints.items(), frozen=True)


# The types that `rate_limiter = { type = ... }` may name: their options, and the class itself.
LIMITERS: Mapping[str, tuple[type[Any], type[RateLimiter]]] = {
    kind.__name__: (_arguments(kind), kind) for kind in (MinSize, SampleToInsertRatio, SamplesPerInsert, Queue, Stack)
}

# The types that `items = { type = ... }` may name.
ITEMS: Mapping[str, type[Items]] = {kind.__name__: kind for kind in (Sequences, NStep, Slices)}


KEYS = tuple(name for name in option_fields(Table) if name != "example")


def table_configs(tables: Mapping[str, Any], origins: Mapping[str, str], plugins: PluginHost) -> tuple[Table, ...]:
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
                keys[key] = _choice(keys[key], f"{where}.{key}", origins, plugins)
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


def table_schema(samplers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of one of `[[server.tables]]`; `samplers` are those of the installed samplers."""
    table = options_schema(Table)
    del table["properties"]["example"]
    of_table = {"anyOf": [{"type": "string"}, *map(_without_capacity, samplers)]}
    table["properties"] |= {"sampler": of_table, "remover": of_table}
    table["properties"]["rate_limiter"] = {"anyOf": [typed_schema(name, options) for name, (options, _) in LIMITERS.items()]}
    table["properties"]["items"] = {"anyOf": [typed_schema(name, options) for name, options in ITEMS.items()]}
    return table


def _without_capacity(sampler: dict[str, Any]) -> dict[str, Any]:
    """The schema of a sampler without `capacity`, because the sampler's table gives it the table's capacity."""
    properties = {key: value for key, value in sampler["properties"].items() if key != "capacity"}
    return {**sampler, "properties": properties, "required": ["type", *(key for key in sampler["required"][1:] if key != "capacity")]}


def _choice(table: Any, where: str, origins: Mapping[str, str], plugins: PluginHost) -> PluginChoice:
    options = dict(table) if isinstance(table, Mapping) else {}
    name = options.pop("type", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f'{origins.get(where, "")}: {where}: the key "type" is missing; add type = "uniform"')
    return PluginChoice("sampler", str(name), options, where, origins, plugins)


def _limiter(table: Any, where: str, origins: Mapping[str, str]) -> RateLimiter:
    origin, name, options = _typed(table, where, origins, "rate limiter", LIMITERS, '{ type = "MinSize", min_size_to_sample = 1000 }')
    kind, make = LIMITERS[name]
    with placed(where, origin):
        return make(**vars(build_options(kind, options, where, origins)))


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

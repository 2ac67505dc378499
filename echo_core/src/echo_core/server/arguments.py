"""Turns the arguments of `Server` into objects: the sampler of a stream, replay tables, and transports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..base.address import Address
from ..base.errors import ConfigError, PluginNotFound
from ..plugins import discovery
from ..plugins.replay_package import replay_module
from ..plugins.sampler_choice import make_sampler
from ..spec.ragged import has_ragged
from ..store.sampler import Sampler
from ..store.storage import Storage
from ..wire.transport import Transport

FIRST_IN_FIRST_OUT = "fifo"  # the order of every stream, so that a stream needs no plugin for it


def stream_sampler(choice: Sampler | str | Mapping[str, Any], plugins: discovery.PluginHost) -> Sampler | None:
    """The sampler of a server that streams samples (it has no replay table). None if it is the default one, and is not installed."""
    try:
        sampler = make_sampler(choice, plugins)
    except PluginNotFound:
        if choice in (FIRST_IN_FIRST_OUT, {"type": FIRST_IN_FIRST_OUT}):
            return None
        raise
    if sampler.storage != "stream":
        raise ConfigError(f"sampler {type(sampler).__name__} draws from a replay table, which needs a capacity; give Server(..., capacity=...)")
    return sampler


QUEUED = 1 << 16  # items of the queue that a server makes for samples of varying length


def short_form(
    example: Any, sampler: Any, capacity: int | None, of_table: dict[str, Any], plugins: discovery.PluginHost
) -> list[Any]:
    """The single replay table of `Server(example, ...)`, a `Table`; an empty list if the server streams."""
    if isinstance(sampler, Sampler):
        if sampler.storage == "stream" and capacity is None:
            return []
        capacity = sampler.capacity if capacity is None else capacity
    elif isinstance(sampler, Mapping):
        own = sampler.get("capacity")
        if None not in (own, capacity) and own != capacity:
            raise ConfigError(f"capacity is given twice: {own} with the sampler and {capacity} to Server; leave one out")
        capacity = own if capacity is None else capacity
    name = sampler if isinstance(sampler, str) else sampler.get("type") if isinstance(sampler, Mapping) else None
    if name == "fifo" and has_ragged(example):  # the ring of a stream holds samples of one size
        capacity = QUEUED if capacity is None else capacity
        if of_table["rate_limiter"] is None:
            of_table = of_table | {"rate_limiter": replay_module("tables.rate_limiters", "an example with Ragged leaves").Queue(capacity)}
    if capacity is None:
        if name is not None and _storage_of(name, plugins) == "replay":
            raise ConfigError(
                f"sampler {name!r} draws from a replay table, which needs a capacity: Server(..., sampler={name!r}, capacity=100_000)"
            )
        if len(given := [key for key, value in of_table.items() if value not in (None, "fifo")]):
            raise ConfigError(f"{' and '.join(given)} belong to a replay table, which needs a capacity and a replay sampler")
        return []
    return [replay_module("config.table", "a replay sampler").Table("default", example, capacity=capacity, sampler=sampler, **of_table)]


def _storage_of(name: str, plugins: discovery.PluginHost) -> str | None:
    """The kind of storage that the sampler of this name needs. Raises PluginError."""
    try:
        return getattr(plugins.sampler_class(name), "storage", None)
    except PluginNotFound:
        if name == FIRST_IN_FIRST_OUT:
            return "stream"
        raise


def make_tables(tables: Iterable[Any], batch_size: int, plugins: discovery.PluginHost) -> dict[str, Storage]:
    """Make the tables; the result has them by name, in the given order."""
    if isinstance(batch_size, bool) or not hasattr(type(batch_size), "__index__") or not 1 <= batch_size < 1 << 24:
        raise ValueError(f"batch_size must be a whole number from 1 to {(1 << 24) - 1}, not {batch_size!r}")
    kind = replay_module("config.table", "a replay table").Table
    made: dict[str, Storage] = {}
    for table in tables:
        if not isinstance(table, kind):
            raise ConfigError(f"tables must be Table objects, not {table!r}")
        if table.name in made:
            raise ConfigError(f"two tables have the name {table.name!r}; give each its own name")
        made[table.name] = table.open(batch_size, plugins)
    return made


def make_transports(choice: Any, plugins: discovery.PluginHost) -> Iterable[Transport]:
    """Make the transports from one or several of `Transport`, address and mapping."""
    if choice is None:
        return
    if isinstance(choice, (Transport, str, Mapping, Address)) or not isinstance(choice, Iterable):
        choice = [choice]
    for one in choice:
        if isinstance(one, Transport):
            yield one
        elif isinstance(one, Mapping):
            options = dict(one)
            try:
                name = options.pop("type")
            except KeyError:
                raise ConfigError("the mapping of a transport needs a key 'type', such as {type = 'tcp', port = 0}") from None
            yield plugins.transport_class(name)(**options)
        elif not isinstance(one, (str, Address)):
            raise ConfigError(f"a transport must be an address such as 'tcp://127.0.0.1:0', a mapping, or a Transport, not {one!r}")
        else:
            address = one if isinstance(one, Address) else Address.parse(one)
            yield plugins.transport_class(address.scheme).at(address)

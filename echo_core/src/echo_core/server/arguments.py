"""Turns the arguments of `Server` into objects: the sampler of a stream, replay tables, and transports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..base.address import Address
from ..base.errors import ConfigError
from ..config.table import Table, make_sampler
from ..plugins import discovery
from ..store.replay.replay_table import ReplayTable
from ..store.sampler import Sampler
from ..wire.transport import Transport


def stream_sampler(choice: Sampler | str | Mapping[str, Any], host: discovery.PluginHost) -> Sampler:
    """The sampler of a server that streams samples (it has no replay table)."""
    sampler = make_sampler(choice, host)
    if sampler.storage != "stream":
        raise ConfigError(f"sampler {type(sampler).__name__} draws from a replay table, which needs a capacity; give Server(..., capacity=...)")
    return sampler


def short_form(
    example: Any, sampler: Any, capacity: int | None, of_table: dict[str, Any], host: discovery.PluginHost
) -> list[Table]:
    """The single replay table of `Server(example, ...)`; None if the server streams."""
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
    if capacity is None:
        if name is not None and getattr(host.sampler_class(name), "storage", None) == "replay":
            raise ConfigError(
                f"sampler {name!r} draws from a replay table, which needs a capacity: Server(..., sampler={name!r}, capacity=100_000)"
            )
        if len(given := [key for key, value in of_table.items() if value not in (None, "fifo")]):
            raise ConfigError(f"{' and '.join(given)} belong to a replay table, which needs a capacity and a replay sampler")
        return []
    return [Table("default", example, capacity=capacity, sampler=sampler, **of_table)]


def make_tables(tables: Iterable[Table], batch_size: int, host: discovery.PluginHost) -> dict[str, ReplayTable]:
    """Make the tables; the result has them by name, in the given order."""
    if isinstance(batch_size, bool) or not hasattr(type(batch_size), "__index__") or not 1 <= batch_size < 1 << 24:
        raise ValueError(f"batch_size must be a whole number from 1 to {(1 << 24) - 1}, not {batch_size!r}")
    made: dict[str, ReplayTable] = {}
    for table in tables:
        if not isinstance(table, Table):
            raise ConfigError(f"tables must be Table objects, not {table!r}")
        if table.name in made:
            raise ConfigError(f"two tables have the name {table.name!r}; give each its own name")
        made[table.name] = table.make(batch_size, host)
    return made


def make_transports(choice: Any, host: discovery.PluginHost) -> Iterable[Transport]:
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
            yield host.transport_class(name)(**options)
        elif not isinstance(one, (str, Address)):
            raise ConfigError(f"a transport must be an address such as 'tcp://127.0.0.1:0', a mapping, or a Transport, not {one!r}")
        else:
            address = one if isinstance(one, Address) else Address.parse(one)
            yield host.transport_class(address.scheme).at(address)

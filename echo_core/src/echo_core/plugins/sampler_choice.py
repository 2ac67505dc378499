"""Makes a sampler of what users give as `sampler=`: a name, a mapping or a `Sampler`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.errors import ConfigError
from ..store.sampler import Sampler
from . import discovery

__all__ = ["A_SAMPLER", "make_sampler"]

A_SAMPLER = "a name such as 'uniform', a mapping {'type': name, ...}, or a Sampler"


def make_sampler(choice: object, plugins: discovery.PluginHost, capacity: int | None = None) -> Sampler:
    """Make a sampler from its name or description; with a `capacity`, one for a replay table.

    Raises:
        ConfigError: the options do not fit. PluginError: the sampler is not installed.
    """
    if isinstance(choice, Sampler):
        return choice
    if not isinstance(choice, (str, Mapping)):
        raise ConfigError(f"a sampler must be {A_SAMPLER}, not {choice!r}")
    options: dict[str, Any] = {"type": choice} if isinstance(choice, str) else dict(choice)
    try:
        name = options.pop("type")
    except KeyError:
        raise ConfigError("the mapping of a sampler needs a key 'type', such as {type = 'fifo'}") from None
    if capacity is not None:
        if options.get("capacity", capacity) != capacity:
            raise ConfigError(f"sampler {name!r} has capacity {options['capacity']}, but its table has {capacity}; leave out the sampler's capacity")
        options["capacity"] = capacity
    return plugins.sampler_class(name)(**options)

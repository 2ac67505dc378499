"""Arguments of `Server` that only programs written for id-echo give. docs/coming-from.md lists them for users."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any

from ..base.address import refuse_host_and_port
from ..base.errors import did_you_mean

__all__ = ["wants_locked_pages"]

NO_EFFECT = ("num_drainers", "producer_queue_size")


def wants_locked_pages(given: dict[str, Any], server: Callable[..., Any], transport: object) -> bool:
    """Check what was given to `Server` beside its own arguments. Returns whether id-echo's name for `pinned` is set.

    Args:
        given: the arguments that `Server` does not have.
        server: the class, whose own arguments may be suggested.
        transport: the argument of this name.

    Raises:
        ConfigError: host or port is given; the text says how to write the address.
        TypeError: an argument is unknown.
    """
    refuse_host_and_port("Server", "transport=", transport, given.pop("host", None), given.pop("port", None))
    if [name for name in NO_EFFECT if given.pop(name, None) is not None]:
        warnings.warn(f"{' and '.join(NO_EFFECT)} have no effect: Echo has no drainer threads and no queues; leave them out", stacklevel=3)
    locked = bool(given.pop("pin_host_memory", False))
    if given:
        name = next(iter(given))
        raise TypeError(f"Server has no argument {name!r}{did_you_mean(name, signature(server).parameters)}")
    return locked

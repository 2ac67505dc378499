"""What a plugin's methods return: the same error for every one that ends without a `return`, or returns something else."""

from __future__ import annotations

from typing import Any, TypeVar

from .address import Address
from .errors import PluginError

__all__ = ["returned", "with_address"]

T = TypeVar("T")


def returned(value: T, kind: type[Any], call: str) -> T:
    """`value`, which the method `call` of a plugin has returned and which has to be a `kind`. Raises PluginError, which says how to end that method."""
    if not isinstance(value, kind):
        raise PluginError(f"{call} returned {value!r}, which is no {kind.__name__}; end it with: return Your{kind.__name__}(...)")
    return value


def with_address(value: T) -> T:
    """`value`, which has to have an `address`. Raises PluginError, which says where to set it."""
    if not isinstance(getattr(value, "address", None), Address):
        raise PluginError(f"{type(value).__name__} has no address; set self.address, with the actual port, in its __init__")
    return value

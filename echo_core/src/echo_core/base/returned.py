"""Checks of what plugins write: the same error for every method that returns something else than it has to, and for an `__init__` that calls no other."""

from __future__ import annotations

from typing import Any, TypeVar

from .address import Address
from .errors import PluginError

__all__ = ["returned", "with_address", "without_init"]

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


def without_init(plugin: object, name: str) -> Any:
    """For the `__getattr__` of a base class whose `__init__` sets `options`. It is called for an attribute that `plugin` lacks, and always raises.

    Raises:
        PluginError: there are no options, because the subclass has an `__init__` that does not call the one of its base class.
    """
    kind = type(plugin).__name__
    if name == "options":
        raise PluginError(f"{kind} has no options, because its __init__ does not call the one of its base class; begin it with: super().__init__(**options)")
    raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=plugin)

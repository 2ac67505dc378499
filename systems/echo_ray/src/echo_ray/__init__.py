"""Shards and workers of echo-cluster on a Ray cluster: placed, restarted, and scaled by who waits. No sample goes through Ray."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives. Importing this package imports none of them, and so no Ray.
_HOME = {"Cluster": "cluster", "Connected": "connected", "connect": "connected", "up": "cluster"}

if TYPE_CHECKING:
    from .cluster import Cluster as Cluster
    from .cluster import up as up
    from .connected import Connected as Connected
    from .connected import connect as connect

__all__ = [*sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

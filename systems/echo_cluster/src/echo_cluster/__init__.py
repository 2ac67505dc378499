"""Several Echo servers as one: workers find the nearest, and a learner draws exactly as from one table."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives. Importing this package imports none of them.
_HOME = {
    "KEY": "keys",
    "ClusterClient": "client",
    "ClusterInfo": "draw",
    "ClusterLearner": "learner",
    "ClusterSample": "draw",
    "LocalCluster": "testing",
    "Member": "members",
    "ShardState": "shard",
    "WorkerContext": "launching.context",
    "announce": "members",
    "serve_shard": "serving",
}

if TYPE_CHECKING:
    from .client import ClusterClient as ClusterClient
    from .draw import ClusterInfo as ClusterInfo
    from .draw import ClusterSample as ClusterSample
    from .keys import KEY as KEY
    from .launching.context import WorkerContext as WorkerContext
    from .learner import ClusterLearner as ClusterLearner
    from .members import Member as Member
    from .members import announce as announce
    from .serving import serve_shard as serve_shard
    from .shard import ShardState as ShardState
    from .testing import LocalCluster as LocalCluster

__all__ = [*sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Figures of others in `Server.stats()` (`Server.add_stats`)."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ...base.errors import ConfigError

__all__ = ["GROUPS", "AddedStats"]

_log = logging.getLogger("echo")

GROUPS = ("store", "latency", "weights", "transport", "clients", "worker", "relay", "table")  # the groups of Echo's own figures
RESERVED = (*GROUPS, "build", "queue_dwell", "copy", "ingest_round")  # names that Prometheus would not distinguish from Echo's own


class AddedStats:
    """The functions that give figures, by their prefixes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: dict[str, Callable[[], Mapping[str, Any]]] = {}
        self._failed: dict[str, str] = {}  # the error that was logged last; the figures are asked for every second

    def add(self, prefix: str, function: Callable[[], Mapping[str, Any]]) -> None:
        """See `Server.add_stats`."""
        if not isinstance(prefix, str) or not re.fullmatch("[a-z][a-z0-9_]*", prefix):
            raise ConfigError(f"the prefix of figures must be a name of small letters, digits and '_', not {prefix!r}")
        if prefix in RESERVED:
            raise ConfigError(f"the prefix {prefix!r} belongs to Echo's own figures; choose another one")
        if not callable(function):
            raise ConfigError(f"the figures of {prefix!r} must come from a function without arguments, not {function!r}")
        with self._lock:
            if prefix in self._functions:
                raise ConfigError(f"this server has figures with the prefix {prefix!r} already; choose another one")
            self._functions[prefix] = function

    def stats(self) -> dict[str, float | int | str]:
        """The figures as `prefix/name`. Those of a function that fails are left out, and the error is logged once."""
        with self._lock:
            functions = list(self._functions.items())
        out: dict[str, float | int | str] = {}
        for prefix, function in functions:
            try:
                figures = {f"{prefix}/{name}": _figure(name, value) for name, value in function().items()}
            except Exception as error:
                if self._failed.get(prefix) != repr(error):
                    self._failed[prefix] = repr(error)
                    _log.exception("the figures of %r cannot be shown", prefix)
                continue
            self._failed.pop(prefix, None)
            out.update(figures)
        return out


def _figure(name: object, value: Any) -> float | int | str:
    """The value as clients and loggers can have it. Raises TypeError."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a figure must be text, not {name!r}")
    item = getattr(value, "item", None)
    value = item() if callable(item) else value  # a number of numpy
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, (int, float, str)):
        raise TypeError(f"the figure {name!r} must be a number or text, not {value!r:.200}")
    return value

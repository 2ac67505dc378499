"""Evolution strategies: `OpenAIES`, `PGPE`, `SepCMAES`, `CMAES`, and those of evosax through `Evosax`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Where each public name lives. Importing this package imports none of them.
_HOME = {
    "CMAES": "cma_es",
    "Evosax": "evosax",
    "OpenAIES": "openai_es",
    "PGPE": "pgpe",
    "SepCMAES": "sep_cma_es",
    "State": "base",
    "Strategy": "base",
    "Whole": "whole",
    "build": "base",
}

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from .base import State as State
    from .base import Strategy as Strategy
    from .base import build as build
    from .cma_es import CMAES as CMAES
    from .evosax import Evosax as Evosax
    from .openai_es import OpenAIES as OpenAIES
    from .pgpe import PGPE as PGPE
    from .sep_cma_es import SepCMAES as SepCMAES
    from .whole import Whole as Whole


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

"""Statistics of a server for Prometheus: `Exporter` and `exposition`. They are part of echoctl, and found there when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...base.installing import how_to_install

__all__ = ["CONTENT_TYPE", "Exporter", "exposition"]  # noqa: F822 - __getattr__ finds them


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("echoctl.prometheus"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("echoctl", "echoctl.prometheus"):
            raise
        raise ImportError(f"{name} is part of echoctl, which is not installed: {how_to_install('echo-core[metrics]')}", name="echoctl") from None

"""The conformance kit is the package `echo_testing`, which the extra `testing` brings. Its contracts are found here, too."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .base.installing import how_to_install

KIT = "echo_testing"  # a name and no import, because core can be installed without it


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # what Python and its tools ask every module for
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        kit = import_module(KIT)
    except ModuleNotFoundError as error:
        if error.name != KIT:
            raise
        raise ModuleNotFoundError(f"the conformance kit is not installed; {how_to_install('echo-core[testing]')}", name=KIT) from None
    try:
        return getattr(kit, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

"""Replay tables are the package `echo_replay`, which the extra `replay` brings. Core finds it when somebody first uses a table."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..base.errors import PluginNotFound
from ..base.installing import how_to_install

if TYPE_CHECKING:  # the types that core's own signatures name; nothing of them is imported when a program runs
    from echo_replay.mixture import MixedSample as MixedSample
    from echo_replay.remote.pending_sample import PendingSample as PendingSample
    from echo_replay.remote.remote_sample import RemoteSample as RemoteSample
    from echo_replay.remote.remote_table import RemoteTable as RemoteTable

__all__ = ["replay_module"]

PACKAGE = "echo_replay"  # a name and no import, because core can be installed without it


def replay_module(name: str, what: str) -> Any:
    """Return the module `name` of echo_replay.

    Args:
        what: what the caller needs it for; the error begins with it.

    Raises:
        PluginNotFound: echo-replay is not installed; the message ends in the command to run. PluginVersionError: it is of another version.
    """
    try:
        found = import_module(PACKAGE).__file__ is not None  # a folder of this name, as in a checkout, would be a package without a file
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
        found = False
    if not found:
        raise PluginNotFound(f"{what} needs echo-replay, which is not installed; {how_to_install('echo-core[replay]')}", name=PACKAGE)
    return import_module(f"{PACKAGE}.{name}")

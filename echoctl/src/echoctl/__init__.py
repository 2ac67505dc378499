"""`echoctl`: start, watch, check and extend Echo from a shell.

Every command has the same exit codes:

* 0: success.
* 1: a check found a problem.
* 2: the command line or the configuration is invalid.
* 3: a server or a plugin cannot be reached, or has refused.
* 130: Ctrl-C interrupted the command.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """The script's entry point; returns the exit code."""
    try:
        from .command import run
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        from echo_core.base.installing import how_to_install

        print(f"echoctl needs {error.name}; {how_to_install('echo-core[cli]')}", file=sys.stderr)
        return 2
    return run(sys.argv[1:])

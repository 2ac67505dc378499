"""`echoctl`: start, watch, check and extend Echo from a shell.

Exit codes, the same for every command: 0 all is well · 1 a check found something wrong · 2 the command line or the configuration cannot be
used · 3 a server or a plugin cannot be reached, or refused · 130 interrupted by Ctrl-C.
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
        print(f'echoctl needs {error.name}; run: pip install "echo-core[cli]"', file=sys.stderr)
        return 2
    return run(sys.argv[1:])

"""The error of a wait that nobody is left to end."""

from __future__ import annotations

import os
import signal

from echo_core.base.errors import ConnectionClosedError

__all__ = ["gone_error"]


def gone_error(name: str, gives: bool, dead: list[int]) -> ConnectionClosedError:
    """`gives`: those that wrote to the memory are gone, otherwise those that took from it. `dead`: those that did not close it before they ended."""
    ends = "; ".join(f"process {pid} {_end_of(pid)}" for pid in sorted(dead)) or "they closed it"
    return ConnectionClosedError(f"no process is left that {'wrote to' if gives else 'took from'} {name}, so this wait would not end: {ends}")


def _end_of(pid: int) -> str:
    try:  # of a child that nobody has waited for; it stays so
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        found = None
    if found is None:
        return "has ended"
    if found.si_code == os.CLD_EXITED:
        return f"has ended with exit code {found.si_status}"
    return f"was killed by signal {found.si_status} ({signal.Signals(found.si_status).name})"

"""The shared memory of echo-ipc that a process holds."""

from __future__ import annotations

import os
from pathlib import Path


def held(pid: int | str = "self") -> list[str]:
    """Descriptors of shared memory, and mappings of it, that a process has."""
    found = [line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().replace(" (deleted)", "").splitlines() if "memfd:echo-ipc" in line]
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if "memfd:echo-ipc" in link:
            found.append(link)
    return found

"""How much of this process's shared memory is mapped in pages of 2 MiB."""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path

__all__ = ["are_huge_pages_given", "forbid_huge_pages", "mapped_in_huge_pages"]

_FORBID, _IS_FORBIDDEN = 41, 42  # PR_SET_THP_DISABLE, PR_GET_THP_DISABLE
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def are_huge_pages_given() -> bool:
    """Whether the kernel gives shared memory huge pages when it is asked for them."""
    major, minor = map(int, re.findall(r"\d+", platform.release())[:2])
    return (major, minor) >= (6, 1) and _SETTING.exists() and "[deny]" not in _SETTING.read_text() and not ctypes.CDLL(None).prctl(_IS_FORBIDDEN, 0, 0, 0, 0)


def forbid_huge_pages() -> None:
    """This process and its children get none from now on, as on a machine without them. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_FORBID, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_THP_DISABLE)")


def mapped_in_huge_pages(name: str) -> int:
    """Bytes of the mappings whose file has `name` in its name, as far as they are mapped in huge pages."""
    found, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counts = name in line
        elif counts and line.startswith("ShmemPmdMapped:"):
            found += int(line.split()[1]) << 10
    return found

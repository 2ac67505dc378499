"""The rivals, if they are installed."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

SOURCE = "BENCH_UNILAB"  # the environment variable with a checkout of UniLab


def unilab_rl(module: str) -> Any:
    """A module of unilab-rl 0.2.0, or None."""
    try:
        return import_module(f"uni_rl.ipc.{module}")
    except ImportError:
        return None


def unilab(module: str) -> Any:
    """A module of UniLab's source, or None. Its package asks for a simulator, so only the folder with the module is used."""
    place = os.environ.get(SOURCE)
    if not place:
        return None
    source = Path(place) / "src"
    if not (source / "unilab" / "ipc").is_dir():
        raise SystemExit(f"{place} has no src/unilab/ipc; give the folder of a checkout of UniLab")
    if str(source) not in sys.path:
        sys.path.append(str(source))
    return import_module(f"unilab.ipc.{module}")

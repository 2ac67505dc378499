"""Bare loops in C and C++ beside the harness: compiled once for each version of their source, kept in the folder for temporary files."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path


def compiled(source: Path, suffix: str, *flags: str) -> Path:
    """What the compiler makes of `source` with `flags`; ImportError without a compiler, with what it said."""
    digest = hashlib.sha256(source.read_bytes() + repr(flags).encode()).hexdigest()[:16]
    built = Path(tempfile.gettempdir()) / f"echo-bench-{os.getuid()}" / f"{source.stem}-{digest}{suffix}"
    if not built.exists():
        built.parent.mkdir(mode=0o700, exist_ok=True)
        variable = "CC" if source.suffix == ".c" else "CXX"
        compiler = shlex.split(os.environ.get(variable) or sysconfig.get_config_var(variable) or variable.lower().replace("x", "+"))
        own = built.with_suffix(f".{os.getpid()}")
        try:
            subprocess.run([*compiler, "-O2", *flags, "-o", str(own), str(source)], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ImportError(f"the bare loops did not compile: {getattr(error, 'stderr', error)}") from error
        own.rename(built)
    return built

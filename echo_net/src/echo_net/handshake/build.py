"""Which Echo this is, for messages to people: the version of echo-core, and a digest of the sources, because builds of one version may differ."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import echo_core

__all__ = ["build", "software"]

#: What both ends of a connection must agree on: the core, and the protocol.
PACKAGES = (Path(echo_core.__file__).resolve().parent, Path(__file__).resolve().parents[1])


@cache
def build() -> str:
    """8 hex digits, which are the same for the same Python sources of echo-core and echo-net; "unknown" if they cannot be read."""
    digest = hashlib.sha256()
    try:
        for package in PACKAGES:
            for path in sorted(package.rglob("*.py")):
                digest.update(path.relative_to(package.parent).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    except OSError:
        return "unknown"
    return digest.hexdigest()[:8]


def software() -> str:
    """`echo-core 0.1.0, build 1a2b3c4d`."""
    return f"echo-core {echo_core.__version__}, build {build()}"

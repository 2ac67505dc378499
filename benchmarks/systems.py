"""A system under test as the harness sees it: what it takes, which interpreter runs it, whether it is there.

The parent process imports no system. One that cannot live beside the others (it needs an older Python, or other versions of what they
share) runs in an interpreter of its own, which an environment variable names.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A system: the class that adapts it, and the distributions it takes, the one that gives the version first; none for what Python has.

    `program` is what it takes instead, where it is no distribution.
    `interpreter` names an environment variable with the path of the Python that has it, "" where this one does; `hint` says how to get it.
    """

    adapter: str
    distributions: tuple[str, ...]
    interpreter: str = ""
    hint: str = ""
    program: str = ""

    @property
    def python(self) -> str:
        """The interpreter that runs it."""
        return os.environ.get(self.interpreter, "") or sys.executable

    def version(self) -> str:
        """Its installed version; PackageNotFoundError names what is missing of it."""
        if self.program:
            return _version_of(program(self.program))
        if not self.distributions:
            return platform.python_version()
        if self.python == sys.executable:
            first, *others = self.distributions
            for distribution in others:
                metadata.version(distribution)
            return metadata.version(first)
        return self._version_elsewhere()

    def _version_elsewhere(self) -> str:
        """Asked of its own interpreter, which may be of another version than this one."""
        code = "import sys; from importlib.metadata import version; print([version(name) for name in sys.argv[1:]][0])"
        try:
            asked = subprocess.run([self.python, "-c", code, *self.distributions], capture_output=True, text=True, timeout=60)
        except OSError as error:
            raise metadata.PackageNotFoundError(f"{self.distributions[0]} ({self.interpreter}: {error.strerror})") from error
        if asked.returncode:
            raise metadata.PackageNotFoundError(self.distributions[0])
        return asked.stdout.strip()

    def load(self) -> Any:
        """Import and build the adapter; ImportError when its system is missing."""
        module, _, cls = self.adapter.partition(":")
        return getattr(import_module(module), cls)()


def program(name: str) -> str:
    """The path of one of UCX's programs: that of the wheel's UCX, which Echo takes too where it is installed, or the system's.

    PackageNotFoundError: there is neither.
    """
    spec = importlib.util.find_spec("libucx")
    of_wheel = [Path(place) / "bin" / name for place in (spec.submodule_search_locations or [] if spec else [])]
    found = next((str(path) for path in of_wheel if os.access(path, os.X_OK)), None) or shutil.which(name)
    if found is None:
        raise metadata.PackageNotFoundError(name)
    return found


def _version_of(path: str) -> str:
    """Of the libucp that lies beside a program."""
    library = Path(path).parent.parent / "lib"
    env = {**os.environ, **({"LD_LIBRARY_PATH": str(library)} if (library / "libucp.so.0").exists() else {})}
    asked = subprocess.run([str(Path(path).with_name("ucx_info")), "-v"], env=env, capture_output=True, text=True, timeout=60)
    found = re.search(r"ersion:?\s+([0-9][0-9.]*)", asked.stdout)
    return found[1] if found else "unknown"

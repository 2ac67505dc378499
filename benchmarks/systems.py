"""A system under test as the harness sees it: what it takes, which interpreter runs it, whether it is there.

The parent process imports no system. One that cannot live beside the others (it needs an older Python, or other versions of what they
share) runs in an interpreter of its own, which an environment variable names.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A system: the class that adapts it, and the distributions it takes, the one that gives the version first; none for what Python has.

    `interpreter` names an environment variable with the path of the Python that has it, "" where this one does; `hint` says how to get it.
    """

    adapter: str
    distributions: tuple[str, ...]
    interpreter: str = ""
    hint: str = ""

    @property
    def python(self) -> str:
        """The interpreter that runs it."""
        return os.environ.get(self.interpreter, "") or sys.executable

    def version(self) -> str:
        """Its installed version; PackageNotFoundError names what is missing of it."""
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

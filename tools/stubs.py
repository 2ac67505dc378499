"""Check that the type stubs of all installed compiled modules match the modules (with mypy's stubtest).

    python tools/stubs.py

The exit code is 1 if a stub does not match, or if a compiled module has no stub.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "tools" / "stubs.txt"


def compiled() -> dict[str, Path]:
    """Every compiled module of this repository, by its name, with its source. Files that others include are parts of these."""
    sources = [path for place in ("*/src", "*/*/src") for path in ROOT.glob(f"{place}/**/*.pyx")]
    included = {path.parent / name for path in sources for name in re.findall(r'^include "(.+)"', path.read_text(), re.M)}
    return {".".join(path.with_suffix("").parts[path.parts.index("src") + 1 :]): path for path in sorted({*sources} - included)}


def main() -> int:
    modules = compiled()
    bare = [str(path.relative_to(ROOT)) for path in modules.values() if not path.with_suffix(".pyi").exists()]
    if bare:
        print(f"no type stub (.pyi) beside {', '.join(bare)}")
        return 1
    there = [name for name in modules if importlib.util.find_spec(name.partition(".")[0])]
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", "--allowlist", str(ALLOWED), "--ignore-unused-allowlist", *there]
    with tempfile.TemporaryDirectory() as empty:  # outside the source tree, so that the installed modules are checked
        return subprocess.run(command, cwd=empty, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
